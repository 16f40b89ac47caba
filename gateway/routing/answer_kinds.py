"""Reads an engine's complete response, by the kind of its endpoint's answers.

As in `engine_answers`, the checks cover what Florin and its clients rely on, and everything else passes
through unchanged.
"""

from __future__ import annotations

import binascii
import math
from array import array
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


def _vectors(body: bytes, call: Call) -> dict[str, Any]:
    answer = read_object(body)
    encoded = call.encoding == "base64"
    sizes = set()
    for item in _each_once(answer.get("data"), call.prompts):
        vector = item.get("embedding")
        if encoded:
            if type(vector) is not str or not _holds_numbers(vector):
                raise MalformedError("a vector is not base64 of 32-bit numbers")
        elif type(vector) is not list or not vector or not _NUMBERS.issuperset(map(type, vector)):
            raise MalformedError("a vector is not a list of numbers")
        sizes.add(len(vector))
    if len(sizes) != 1:
        raise MalformedError("the vectors differ in length")
    return answer


def _scores(body: bytes, call: Call) -> dict[str, Any]:
    answer = read_object(body)
    for item in _each_once(answer.get("data"), call.prompts):
        if type(item.get("score")) not in _NUMBERS:
            raise MalformedError("a score is not a number")
    return answer


def _ranking(body: bytes, call: Call) -> dict[str, Any]:
    answer = read_object(body)
    results = answer.get("results")
    if type(results) is not list or len(results) != min(call.results or call.prompts, call.prompts):
        raise MalformedError("the response does not have the results asked for")
    for item in _indexed(results, call.prompts):
        if type(item.get("relevance_score")) not in _NUMBERS:
            raise MalformedError("a relevance is not a number")
    return answer


def _each_once(given: Any, count: int) -> list[dict[str, Any]]:
    if type(given) is not list or len(given) != count:
        raise MalformedError(f"the response does not have {count} results")
    return _indexed(given, count)


def _indexed(given: list[Any], count: int) -> list[dict[str, Any]]:
    """Objects with distinct indexes below `count`."""
    seen = set()
    for item in given:
        index = item.get("index") if type(item) is dict else None
        if type(index) is not int or not 0 <= index < count or index in seen:
            raise MalformedError(f"a result's index is not one of {count}, or comes twice")
        seen.add(index)
    return given


def _holds_numbers(text: str) -> bool:
    """Whether it is base64 of 32-bit floating point numbers, at least one, all finite."""
    try:
        numbers = array("f", binascii.a2b_base64(text, strict_mode=True))
    except ValueError:
        return False
    return len(numbers) > 0 and math.isfinite(sum(numbers))


_NUMBERS = frozenset({float, int})

_READERS: dict[AnswerKind, Callable[[bytes, Call], dict[str, Any]]] = {
    AnswerKind.CHOICES: _choices,
    AnswerKind.TOKENS: _tokens,
    AnswerKind.TEXT: _text,
    AnswerKind.VECTORS: _vectors,
    AnswerKind.SCORES: _scores,
    AnswerKind.RANKING: _ranking,
}
