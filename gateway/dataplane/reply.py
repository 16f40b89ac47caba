"""What a dialect makes of an engine's answer. See `gateway.dialects`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.errors import FlorinError


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """Token counts of a whole answer, across all engines that took part."""

    prompt: int
    completion: int
    cached: int | None
    """Part of `prompt`; None: not reported."""
    reasoning: int
    """Part of `completion`."""


class Reply(Protocol):
    """The answer to one request in its client's dialect.

    One request has one, across its attempts. For a stream, `begin` is called at the start of each attempt
    until one has delivered something; then `event` for each of the engine's events with choices (`text` for
    those that only add text, if the shape of the events is known), and `end` once, or `fail` once. A stream
    that another engine resumes goes on with the next event. Answers that are not streams call `whole`.

    Chunks and answers are the engine's, checked by `gateway.routing`: `choices` is a list of objects, each
    with a `delta` or `message`. What is within may be of any type. May raise `TypeError`, `KeyError`,
    `IndexError`, `ValueError` or `AttributeError` for what it cannot read: the engine's answer then counts as
    malformed.
    """

    def whole(self, answer: dict[str, Any], usage: ReplyUsage) -> bytes:
        """The body of a response that is not a stream."""

    def begin(self) -> None:
        """A new attempt starts, and the client has received nothing."""

    def event(self, chunk: dict[str, Any], usage: ReplyUsage) -> bytes:
        """The events for one event of the engine. `usage`: the counts so far."""

    def text(self, escaped: bytes) -> bytes:
        """The events for an event of the engine that only adds text to the answer: the same as `event`, but
        faster. `escaped`: the text as within a JSON string."""

    def end(self, usage: ReplyUsage) -> bytes:
        """The events after the last one of the engine."""

    def fail(self, error: FlorinError) -> bytes:
        """The last events of a stream that fails after it has begun."""
