"""Validates engine responses: complete responses, choices of stream events, error objects.

An engine is another process on another host, perhaps of another version, so its responses are checked
as clients' bodies are. The checks cover only what Florin and its clients rely on: choices are objects with a
valid index, a finish reason that is a string, and content. Everything else passes through unchanged. (For
token counts, see `gateway.metering.token_counts`.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import orjson

log = logging.getLogger(__name__)

LOG_SECONDS = 60.0


class MalformedError(Exception):
    """The engine's response is not valid for this request."""


def read_answer(body: bytes, *, choices: int) -> dict[str, Any]:
    """A complete response with exactly `choices` choices, each index once. Raises MalformedError."""
    answer = read_object(body)
    given = answer.get("choices")
    if type(given) is not list or len(given) != choices:
        raise MalformedError(f"the response does not have {choices} choices")
    for choice in given:
        check_choice(choice, choices)
        if type(choice.get("message")) is not dict and type(choice.get("text")) is not str:
            raise MalformedError("a choice has no content")
    if choices > 1 and len({choice["index"] for choice in given}) != choices:
        raise MalformedError("two choices have the same index")
    return answer


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises MalformedError."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the response is not JSON: {error}") from None
    if type(answer) is not dict:
        raise MalformedError("the response is not an object")
    return answer


def check_choice(choice: Any, choices: int) -> None:
    """Check a choice of a response or of an event. Raises MalformedError."""
    if type(choice) is not dict:
        raise MalformedError("a choice is not an object")
    index = choice.get("index")
    if type(index) is not int or not 0 <= index < choices:
        raise MalformedError(f"a choice's index is not one of {choices}")
    reason = choice.get("finish_reason")
    if reason is not None and type(reason) is not str:
        raise MalformedError("a finish reason is not a string")


def without_reasoning(choices: list[Any]) -> bool:
    """Remove reasoning, and the tokens of events that contain some, from checked choices. Returns whether
    anything is left for the client."""
    left = False
    for choice in choices:
        delta = choice.get("delta")
        if type(delta) is dict:
            thoughts = [delta.pop(name, None) for name in ("reasoning", "reasoning_content")]
            if any(thoughts):
                choice |= {name: None for name in ("logprobs", "token_ids") if name in choice}
            if all(value is None for value in delta.values()) and not choice.get("finish_reason"):
                continue
        left = True
    return left


def render(answer: dict[str, Any]) -> bytes:
    """Serialize a response. Raises MalformedError if it is nested too deeply, which parsing does not
    detect."""
    try:
        return orjson.dumps(answer)
    except TypeError as error:
        raise MalformedError(f"the response cannot be serialized: {error}") from None


def read_error(body: bytes) -> dict[str, Any]:
    """The error object in the body of an error response; empty if there is none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = answer.get("error", answer) if type(answer) is dict else None
    if type(error) is str:  # TGI's and LoRAX's
        return {"message": error}
    return error if type(error) is dict else {}


class EngineFaults:
    """Counts malformed responses, and logs them once a minute for each engine and kind of fault.

    Mutable: when each was last logged. Operators name engines, so there are few."""

    def __init__(
        self, count: Callable[[str, str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`count(engine, kind)` is called for each fault."""
        self._count = count
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def note(self, engine: str, kind: str, words: str) -> None:
        self._count(engine, kind)
        now = self._clock()
        last = self._logged.get((engine, kind))
        if last is None or now - last >= LOG_SECONDS:
            self._logged[engine, kind] = now
            log.warning("Engine %s: malformed response (%s): %s", engine, kind, words[:500])
