"""What an engine may answer, checked in one place: whole answers, choices of stream events, error objects.

Pure. An engine is another process on another host, of another version, with code of its own: what it sends
is checked as a client's body is. Here is only what Florin and its clients rely on: that choices are objects
with an index that the request has, a finish reason that is a text, and something said. What else they hold
passes through untouched. (Token counts: see `gateway.metering.token_counts`.)
"""

from __future__ import annotations

from typing import Any

import orjson

LONGEST_MESSAGE = 2000
"""Characters of an engine's error message that reach the client and the log."""


class MalformedError(Exception):
    """The engine sent what is no answer to this request."""


def read_answer(body: bytes, *, choices: int) -> dict[str, Any]:
    """A whole answer: exactly `choices` choices, each index once. Raises MalformedError."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the answer is not JSON: {error}") from None
    if type(answer) is not dict:
        raise MalformedError("the answer is not an object")
    given = answer.get("choices")
    if type(given) is not list or len(given) != choices:
        raise MalformedError(f"the answer does not have {choices} choices")
    for choice in given:
        check_choice(choice, choices)
        if type(choice.get("message")) is not dict and type(choice.get("text")) is not str:
            raise MalformedError("a choice says nothing")
    if len({choice["index"] for choice in given}) != choices:
        raise MalformedError("two choices have the same index")
    return answer


def check_choice(choice: Any, choices: int) -> None:
    """One choice of an answer, or of an event. Raises MalformedError."""
    if type(choice) is not dict:
        raise MalformedError("a choice is not an object")
    index = choice.get("index")
    if type(index) is not int or not 0 <= index < choices:
        raise MalformedError(f"a choice's index is not one of {choices}")
    reason = choice.get("finish_reason")
    if reason is not None and type(reason) is not str:
        raise MalformedError("a finish reason is not a text")


def render(answer: dict[str, Any]) -> bytes:
    """The JSON of what was read. Raises MalformedError: what can be read can still be nested too deeply to
    be written."""
    try:
        return orjson.dumps(answer)
    except TypeError as error:
        raise MalformedError(f"the answer cannot be passed on: {error}") from None


def read_error(body: bytes) -> dict[str, Any]:
    """The error object in the body of a refusal; empty if there is none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = answer.get("error", answer) if type(answer) is dict else None
    return error if type(error) is dict else {}


def message_of(error: dict[str, Any], otherwise: str) -> str:
    """What an error object says, as one text of bounded length."""
    message = error.get("message")
    return message[:LONGEST_MESSAGE] if type(message) is str and message else otherwise
