"""The mock engine's routes that generate nothing, in the format of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from loadtests.mock_engine.request import BadRequestError, GenerationRequest, chat_prompt
from loadtests.mock_engine.state import State


def tokenize(body: dict[str, Any], state: State) -> GenerationRequest:
    """A token for each word, the same for the same word."""
    text = body["prompt"] if "prompt" in body else chat_prompt(body)[0]
    words = text.split(" ")
    tokens = [state.vocabulary.setdefault(word, len(state.vocabulary)) for word in words]
    answer = {
        "count": len(tokens),
        "max_model_len": state.spec.max_model_len,
        "tokens": tokens,
        "token_strs": words if body.get("return_token_strs") else None,
    }
    return _answered(body, state, answer)


def detokenize(body: dict[str, Any], state: State) -> GenerationRequest:
    words = dict(enumerate(state.vocabulary))
    return _answered(body, state, {"prompt": " ".join(words.get(token, "") for token in body["tokens"])})


def _answered(
    body: dict[str, Any], state: State, answer: dict[str, Any], prompts: tuple[int, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        chat=False,
        model=body.get("model") or state.spec.base,
        stream=False,
        choices=0,
        tokens=0,
        finish="",
        prompt=orjson.dumps(body).decode(),
        prompts=prompts,
        include_usage=False,
        continuous_usage=False,
        salt=str(body.get("cache_salt") or ""),
        whole=orjson.dumps(answer),
    )


_ROUTES: dict[str, Callable[[dict[str, Any], State], GenerationRequest]] = {
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}


def serves(path: str) -> bool:
    return path in _ROUTES


def parse(path: str, body: dict[str, Any], state: State) -> GenerationRequest:
    """A request whose answer is known. Raises BadRequestError with vLLM's message."""
    try:
        return _ROUTES[path](body, state)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequestError(f"1 validation error: {error!r}", "body", "Bad Request") from error
