"""Where `florin cost events` puts events: stdout, a file, or a billing system over HTTP.

Delivery is at least once, with ids that never change. So what a receiver has already is a success here: Lago
refuses a whole batch that holds a known event (422) and says which ones, and Stripe refuses a known
identifier (400, "An event already exists with identifier …").
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.commands.client import UsageError

if TYPE_CHECKING:
    import httpx2

_BATCH = 100
"""Lago takes no more at a time."""
_SECONDS = 30.0


class Receiver:
    """Mutable: counts what was delivered."""

    def __init__(
        self, form: str, customers: Mapping[str, str], output: Path | None, url: str | None, token: str
    ) -> None:
        self._form = form
        self._customers = customers
        self._output = output
        self._url = url
        self._token = token
        self.sent = 0
        self.known = 0
        """How many of these the receiver had already."""

    @property
    def to_stdout(self) -> bool:
        return self._output is None and self._url is None

    def take(self, events: Sequence[Mapping[str, Any]]) -> str:
        """Deliver the events in order. Returns why it stopped; empty if it did not. Raises UsageError."""
        from gateway.costs.events.formats import FORMATS

        messages = [message for event in events for message in FORMATS[self._form](event, self._customers)]
        if self._url is not None:
            return self._post(messages) if messages else ""
        self._write("".join(json.dumps(message, ensure_ascii=False) + "\n" for message in messages))
        self.sent += len(messages)
        return ""

    def _write(self, lines: str) -> None:
        if self._output is None:
            sys.stdout.write(lines)
            sys.stdout.flush()
            return
        try:
            with self._output.open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            raise UsageError(f"--output: {self._output} cannot be written: {error.strerror}.") from error

    def _post(self, messages: Sequence[dict[str, Any]]) -> str:
        import httpx2

        size = 1 if self._form == "stripe" else _BATCH
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        with httpx2.Client(timeout=_SECONDS, headers=headers) as client:
            for start in range(0, len(messages), size):
                batch = list(messages[start : start + size])
                try:
                    failure, known = self._send(client, batch)
                except httpx2.HTTPError as error:
                    failure, known = f"the receiver did not answer ({type(error).__name__}).", 0
                if failure:
                    return failure
                self.sent += len(batch)
                self.known += known
        return ""

    def _send(self, client: httpx2.Client, batch: list[dict[str, Any]]) -> tuple[str, int]:
        """Why it failed, or "", and how many the receiver had already."""
        answer = client.post(self._url or "", **_request(self._form, batch))
        if answer.is_success:
            return "", 0
        known = _known(self._form, answer, len(batch))
        if not known:
            return f"the receiver answered {answer.status_code}: {answer.text[:300]}", 0
        rest = [message for index, message in enumerate(batch) if index not in known]
        if rest:
            again = client.post(self._url or "", **_request(self._form, rest))
            if not again.is_success:
                return f"the receiver answered {again.status_code}: {again.text[:300]}", 0
        return "", len(known)


def _request(form: str, batch: list[dict[str, Any]]) -> dict[str, Any]:
    if form == "stripe":
        [event] = batch
        flat = {name: value for name, value in event.items() if name != "payload"}
        flat |= {f"payload[{name}]": value for name, value in event["payload"].items()}
        return {"data": flat, "headers": {"idempotency-key": event["identifier"]}}
    if form == "lago":
        return {"json": {"events": batch}}
    headers = {"content-type": "application/cloudevents-batch+json"}
    return {"content": json.dumps(batch, ensure_ascii=False).encode(), "headers": headers}


def _known(form: str, answer: httpx2.Response, count: int) -> set[int]:
    """Positions of the events that the receiver refuses because it has them."""
    try:
        body = answer.json()
    except ValueError:
        return set()
    if form == "stripe" and answer.status_code in {400, 409}:
        error = (body.get("error") or {}) if isinstance(body, dict) else {}
        return {0} if "already exists with identifier" in str(error.get("message", "")) else set()
    if form == "lago" and answer.status_code == 422 and isinstance(body, dict):
        return set(_duplicates(body.get("error_details"), count))
    return set()


def _duplicates(details: object, count: int) -> Iterator[int]:
    """Positions in Lago's `{"0": {"transaction_id": ["value_already_exist"]}, …}`."""
    for index, errors in details.items() if isinstance(details, dict) else ():
        if errors == {"transaction_id": ["value_already_exist"]} and str(index).isdigit():
            yield int(index)
        elif count == 1 and (index, errors) == ("transaction_id", ["value_already_exist"]):
            yield 0
