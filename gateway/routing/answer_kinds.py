"""Reads an engine's complete response, by the kind of its endpoint's answers.

As in `engine_answers`, the checks cover what Florin and its clients rely on, and everything else passes
through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.dataplane.request import AnswerKind, Call
from gateway.routing.engine_answers import MalformedError, read_answer, read_object


def read_kind(body: bytes, call: Call) -> dict[str, Any]:
    """The complete response to a call. Raises MalformedError."""
    return _READERS[call.endpoint.answer](body, call)


def _choices(body: bytes, call: Call) -> dict[str, Any]:
    return read_answer(body, choices=call.choices)


def _tokens(body: bytes, _: Call) -> dict[str, Any]:
    answer = read_object(body)
    tokens, texts = answer.get("tokens"), answer.get("token_strs")
    if type(tokens) is not list or any(type(token) is not int for token in tokens):
        raise MalformedError("the tokens are not integers")
    if answer.get("count") != len(tokens):
        raise MalformedError("the count is not that of the tokens")
    if texts is not None and (type(texts) is not list or len(texts) != len(tokens)):
        raise MalformedError("there is not one text for each token")
    return answer


def _text(body: bytes, _: Call) -> dict[str, Any]:
    answer = read_object(body)
    if type(answer.get("prompt")) is not str:
        raise MalformedError("the response has no text")
    return answer


_READERS: dict[AnswerKind, Callable[[bytes, Call], dict[str, Any]]] = {
    AnswerKind.CHOICES: _choices,
    AnswerKind.TOKENS: _tokens,
    AnswerKind.TEXT: _text,
}
