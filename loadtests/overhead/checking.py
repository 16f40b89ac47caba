"""Whether answers are complete and correct, and how long their events took. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

Arrivals = list[tuple[float, bytes]]
"""Pieces of a body, each with the monotonic time of its arrival."""

_STAMP = re.compile(r" @(\d{16})")
"""The thin mock's STAMP."""


@dataclass(frozen=True, slots=True)
class Event:
    arrived: float
    sent: float
    """0.0 if it does not say."""


def check_whole(status: int, body: bytes, expect: str) -> str:
    """Describe the problem with an answer; empty if it is complete and correct."""
    try:
        answer = orjson.loads(body)
        if not answer["usage"]["completion_tokens"]:
            return f"no usage: {body[:300]!r}"
        said = answer["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return f"status {status}, {problem!r}: {body[:300]!r}"
    return _compare(status, said, expect)


def check_stream(status: int, arrivals: Arrivals, expect: str) -> tuple[str, list[Event]]:
    """The problem, if any, and the events except `[DONE]`. Status 0: the stream was still running."""
    events: list[Event] = []
    said = ""
    finish = None
    done = False
    try:
        for arrived, data in _events(arrivals):
            if done:
                return f"something after [DONE]: {data[:300]!r}", events
            done = data == b"[DONE]"
            if done:
                continue
            chunk = orjson.loads(data)
            if chunk.get("usage"):
                return f"unrequested usage: {data!r}", events
            choice = chunk["choices"][0]
            finish = choice.get("finish_reason")
            text, sent = _unstamped(choice)
            said += text
            events.append(Event(arrived, sent))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        whole = b"".join(data for _, data in arrivals)
        return f"status {status}, {problem!r}: {whole[:300]!r}", events
    if not status:
        return ("" if expect.startswith(said) else _compare(200, said, expect)), events
    if not done or finish is None:
        return f"status {status}, ended without [DONE] or finish reason: {said[-200:]!r}", events
    return _compare(status, said, expect), events


def _events(arrivals: Arrivals) -> Iterator[tuple[float, bytes]]:
    rest = b""
    for arrived, data in arrivals:
        *whole, rest = (rest + data).split(b"\n\n")
        for event in whole:
            if not event.startswith(b":"):  # a comment keeps connections alive
                yield arrived, event.removeprefix(b"data: ")


def _unstamped(choice: dict[str, Any]) -> tuple[str, float]:
    """The text without the times in it, and the last of them in seconds."""
    text = choice["delta"].get("content") or ""
    sent = 0.0
    for stamp in _STAMP.finditer(text):
        sent = int(stamp[1]) / 1e6
    return _STAMP.sub("", text), sent


def _compare(status: int, said: str, expect: str) -> str:
    if status != 200 or said != expect:
        return f"status {status}, text {said[:200]!r} instead of {expect[:200]!r}"
    return ""
