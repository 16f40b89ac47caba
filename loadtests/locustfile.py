"""A steady mixed load: three customers of different sizes, chat and completions, streamed and not.

Run it with `make loadtest` (loadtests/run_locust.py), which sets the FLORIN_* variables from the demo's env
file, or manually with `locust -f loadtests/locustfile.py` and the same variables. Every answer is checked:
status, adapter, finish reason, usage, end of stream.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locust import HttpUser, between, events, task

from loadtests.tally import Tally

QUESTIONS = (
    "Who are you?",
    "When does it arrive?",
    "What does it cost?",
    "Can I speak to a person?",
    "Please tell me a little about what you do, where you are, and how I can reach you on a Sunday.",
)
OK = 200
tally = Tally()
"""Tally of this locust process, shared by its greenlets."""


class WrongAnswerError(Exception):
    pass


def write_tally(**_: Any) -> None:
    target = os.environ.get("FLORIN_LOADTEST_RESULT")
    if target:
        Path(target).write_text(json.dumps(tally.dump()))


events.quitting.add_listener(write_tally)  # type: ignore[no-untyped-call]  # locust has no types


class Customer(HttpUser):
    """Sends one request after another, with short pauses."""

    abstract = True
    tenant = ""
    wait_time = between(0.05, 0.5)

    def on_start(self) -> None:
        self.key = os.environ[f"FLORIN_KEY_{self.tenant.upper()}"]
        self.model = os.environ[f"FLORIN_MODEL_{self.tenant.upper()}"]

    @task(4)
    def chat_streamed(self) -> None:
        self._ask("chat streamed", "/v1/chat/completions", self._chat(), stream=True)

    @task(3)
    def chat(self) -> None:
        self._ask("chat", "/v1/chat/completions", self._chat(), stream=False)

    @task(1)
    def completion_streamed(self) -> None:
        self._ask("completion streamed", "/v1/completions", self._completion(), stream=True)

    @task(1)
    def completion(self) -> None:
        self._ask("completion", "/v1/completions", self._completion(), stream=False)

    def _chat(self) -> dict[str, Any]:
        messages = [{"role": "user", "content": random.choice(QUESTIONS)}]
        return {"messages": messages, "max_tokens": random.choice((8, 16, 32))}

    def _completion(self) -> dict[str, Any]:
        return {"prompt": random.choice(QUESTIONS), "max_tokens": random.choice((8, 16))}

    def _ask(self, kind: str, path: str, body: dict[str, Any], *, stream: bool) -> None:
        body |= {"model": self.model, "temperature": 0}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"authorization": f"Bearer {self.key}"}
        began = time.perf_counter()
        with self.client.post(
            path, json=body, headers=headers, stream=stream, name=kind, catch_response=True, timeout=60
        ) as answer:
            try:
                if answer.status_code != OK:
                    raise WrongAnswerError(f"status {answer.status_code}: {answer.text[:200]}")
                usage = self._streamed(kind, answer, began) if stream else _whole(answer.json())
                self._check_adapter(answer.headers)
            except Exception as problem:  # noqa: BLE001 - every failure is reported
                tally.failures[f"{kind}: {problem}"] += 1
                answer.failure(str(problem))
                return
            taken = (time.perf_counter() - began) * 1000
            answer.request_meta["response_time"] = taken
            tally.latency[kind].append(taken)
            tally.tokens[f"{self.tenant} {answer.headers['x-florin-engine']}"].add(usage)
            answer.success()

    def _streamed(self, kind: str, answer: Any, began: float) -> dict[str, Any]:
        """Read a stream and return its usage. Raises WrongAnswerError."""
        text, finish = "", None
        usage: dict[str, Any] = {}
        for chunk in _events(answer):
            if "error" in chunk:
                raise WrongAnswerError(f"error event: {chunk['error']}")
            for choice in chunk["choices"]:
                piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                if piece and not text:
                    tally.first_token[kind].append((time.perf_counter() - began) * 1000)
                text += piece or ""
                finish = choice["finish_reason"] or finish
            usage = chunk.get("usage") or usage
        _check(text, finish, usage)
        return usage

    def _check_adapter(self, headers: Any) -> None:
        adapter = headers.get("x-florin-adapter", "")
        if not adapter.startswith(f"{self.tenant}/"):
            raise WrongAnswerError(f"answered by {adapter!r}")


class Acme(Customer):
    tenant = "acme"
    weight = 6


class Bolt(Customer):
    tenant = "bolt"
    weight = 3


class Corgi(Customer):
    tenant = "corgi"
    weight = 2


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """The JSON of each SSE event. Raises WrongAnswerError if the stream ends without [DONE]."""
    for line in answer.iter_lines():
        if line == b"data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix(b"data: "))
    raise WrongAnswerError("the stream ended without [DONE]")


def _whole(answer: dict[str, Any]) -> dict[str, Any]:
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    usage: dict[str, Any] = answer["usage"]
    _check(text, choice["finish_reason"], usage)
    return usage


def _check(text: str, finish: str | None, usage: dict[str, Any]) -> None:
    """Check an answer. The text may be empty, because a tiny model may have nothing to say to unseen
    input."""
    if finish not in {"stop", "length"} or usage.get("completion_tokens", 0) < 1:
        raise WrongAnswerError(f"text {text!r}, finish reason {finish!r}, usage {usage!r}")
