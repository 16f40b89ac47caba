"""Whether answers are complete and correct, and how long their events took. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from loadtests.overhead.apis import APIS, Api

CHAT = APIS["chat"]
Arrivals = list[tuple[float, bytes]]
"""Pieces of a body, each with the monotonic time of its arrival."""

_STAMP = re.compile(r" @(\d{16})")
"""The thin mock's STAMP."""


@dataclass(frozen=True, slots=True)
class Event:
    arrived: float
    sent: float
    """0.0 if it does not say."""


def check_whole(status: int, body: bytes, expect: str, api: Api = CHAT) -> str:
    """Describe the problem with an answer; empty if it is complete and correct."""
    try:
        answer = orjson.loads(body)
        if not api.used(answer):
            return f"no usage: {body[:300]!r}"
        text = api.text(answer)
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return f"status {status}, {problem!r}: {body[:300]!r}"
    return _compare(status, text, expect)


def check_stream(status: int, arrivals: Arrivals, expect: str, api: Api = CHAT) -> tuple[str, list[Event]]:
    """The problem, if any, and the events that are about text. Status 0: the stream was still running."""
    events: list[Event] = []
    answer = ""
    finished = done = False
    try:
        for arrived, data in _events(arrivals):
            if done:
                return f"something after the end: {data[:300]!r}", events
            if data == b"[DONE]":
                done = True
                continue
            event = orjson.loads(data)
            finished = finished or api.is_last(event)
            done = finished and not api.done
            piece = api.piece(event)
            if piece is not None:
                text, sent = _unstamped(piece)
                answer += text
                events.append(Event(arrived, sent))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        received = b"".join(data for _, data in arrivals)
        return f"status {status}, {problem!r}: {received[:300]!r}", events
    if not status:
        return ("" if expect.startswith(answer) else _compare(200, answer, expect)), events
    if not done or not finished:
        return f"status {status}, ended without its last event: {answer[-200:]!r}", events
    return _compare(status, answer, expect), events


def _events(arrivals: Arrivals) -> Iterator[tuple[float, bytes]]:
    rest = b""
    for arrived, data in arrivals:
        *complete, rest = (rest + data).split(b"\n\n")
        for event in complete:
            if not event.startswith(b":"):  # a comment keeps connections alive
                yield arrived, event.partition(b"data: ")[2]


def _unstamped(text: str) -> tuple[str, float]:
    """The text without the times in it, and the last of them in seconds."""
    sent = 0.0
    for stamp in _STAMP.finditer(text):
        sent = int(stamp[1]) / 1e6
    return _STAMP.sub("", text), sent


def _compare(status: int, text: str, expect: str) -> str:
    if status != 200 or text != expect:
        return f"status {status}, text {text[:200]!r} instead of {expect[:200]!r}"
    return ""
