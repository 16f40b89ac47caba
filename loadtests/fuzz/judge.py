"""Judges responses to fuzzed inputs. Pure, except for reading the log."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.dialects.messages.errors import DIALECT as ANTHROPIC
from gateway.errors import CODES

_OURS = frozenset(
    {
        "internal_error",
        "store_unavailable",
        "ledger_unavailable",
        "metering_unavailable",
        "artifacts_unavailable",
        "shutting_down",
    }
)
"""Server errors that no input may cause while Redis, the database and the disk are available."""
ENGINE_TROUBLE = frozenset(name for name, code in CODES.items() if code.status in {502, 503}) - _OURS
"""Server errors allowed if an engine fails."""
NOTHING: frozenset[str] = frozenset()
_TRACEBACK = b"Traceback (most recent call last)"
_NAME = re.compile(rb"event: [a-z_.]+\n")
_LAST = frozenset(
    b"event: " + name
    for name in (b"response.completed", b"response.incomplete", b"response.failed", b"message_stop", b"error")
)
"""Events that end a stream, in dialects that have no `[DONE]`."""
_LINE = re.compile(rb"^\d{4}-\d\d-\d\d ", re.MULTILINE)
"""Beginning of each log line."""


class BrokenPromiseError(AssertionError):
    """A response or an event that violates a promise."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = ""
    """Its content type."""


def check(answer: Answer, allowed: Collection[str] = NOTHING) -> None:
    """`allowed`: codes of server errors that this input may cause. Raises BrokenPromiseError."""
    if answer.status >= 400:
        _check_error(answer.status, _error(answer), allowed)
    elif answer.kind.startswith("text/event-stream"):
        _check_events(answer.body, allowed)


def check_secrets(answer: Answer, request: str, secrets: Collection[str]) -> None:
    """That the answer tells none of the secrets that the caller did not name itself. Raises
    BrokenPromiseError."""
    text = answer.body.decode("utf-8", "replace")
    disclosed = [secret for secret in secrets if secret in text and secret not in request]
    if disclosed:
        raise BrokenPromiseError(f"tells {disclosed[:5]}: {answer!r}")


def _error(answer: Answer) -> dict[str, object]:
    try:
        body = json.loads(answer.body)
        error = body["error"]
    except (ValueError, KeyError, TypeError) as problem:
        if answer.status == 400 and answer.kind.startswith("text/plain"):
            return {}  # the HTTP server's own answer to invalid HTTP
        raise BrokenPromiseError(f"status {answer.status} without an error object: {answer!r}") from problem
    members = {"message", "type"} if body.get("type") == "error" else {"message", "type", "param", "code"}
    if not isinstance(error, dict) or set(error) < members:
        raise BrokenPromiseError(f"not an error object: {answer!r}")
    return error


def _check_error(status: int, error: dict[str, object], allowed: Collection[str]) -> None:
    code = error.get("code")
    if not error or _is_anthropics(error):
        if status >= 500 and not allowed:
            raise BrokenPromiseError(f"status {status}: {error}")
        return
    if code not in CODES:
        raise BrokenPromiseError(f"status {status} with an unknown code: {error}")
    known = CODES[str(code)]
    documented = {known.status, ANTHROPIC.statuses.get(str(code), known.status)}
    if status >= 500 and (code not in allowed or status not in documented):
        raise BrokenPromiseError(f"status {status}: {error}")
    if status // 100 != known.status // 100:
        raise BrokenPromiseError(f"status {status} instead of the documented {known.status}: {error}")


def _check_events(body: bytes, allowed: Collection[str]) -> None:
    *events, rest = body.split(b"\n\n")
    if rest or not events or not _ends(events[-1]):
        raise BrokenPromiseError(f"a truncated stream: {body[-300:]!r}")
    for event in events:
        name, data, payload = event.partition(b"data: ")
        if not data or (name and not _NAME.fullmatch(name)):
            raise BrokenPromiseError(f"not an event: {event[:300]!r}")
        if payload == b"[DONE]" and event is events[-1]:
            continue
        try:
            document = json.loads(payload)
        except ValueError as problem:
            raise BrokenPromiseError(f"an event that is not JSON: {event[:300]!r}") from problem
        error = _error_of(document) if isinstance(document, dict) else None
        if error is not None:
            code = error.get("code")
            if _is_anthropics(error) and allowed:
                continue
            if code not in CODES or (CODES[code].status >= 500 and code not in allowed):
                raise BrokenPromiseError(f"in a stream: {error}")


def _ends(event: bytes) -> bool:
    """Whether a stream may end with this event."""
    return event == b"data: [DONE]" or event.partition(b"\n")[0] in _LAST


def _error_of(event: dict[str, Any]) -> dict[str, Any] | None:
    """The error that an event reports, in whichever dialect."""
    if event.get("type") == "error":
        return event.get("error") if isinstance(event.get("error"), dict) else event
    return event["error"] if isinstance(event.get("error"), dict) else None


def _is_anthropics(error: dict[str, Any]) -> bool:
    """Anthropic's errors have a type, but none of Florin's codes."""
    return bool(error) and "code" not in error


class Log:
    """Reads the gateway's log incrementally. Mutable: the position."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def news(self) -> str:
        """The first new traceback with the line above it; empty if none."""
        if not self._path.exists() or self._path.stat().st_size == self._seen:
            return ""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        start = new.find(_TRACEBACK)
        if start < 0:
            return ""
        above = new.rfind(b"\n", 0, start)  # the log indents continuation lines
        line = new.rfind(b"\n", 0, max(above, 0)) + 1
        end = _LINE.search(new, start)
        return new[line : end.start() if end else start + 20_000].decode(errors="replace")

    def check(self) -> None:
        """Raises BrokenPromiseError if there is a new traceback."""
        if news := self.news():
            raise BrokenPromiseError(f"in the log: {news}")
