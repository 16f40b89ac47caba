"""The mock engine's routes that generate nothing, in the format of vLLM 0.32."""

from __future__ import annotations

import base64
import math
import random
import time
from array import array
from collections.abc import Callable
from operator import mul
from typing import Any

import orjson

from loadtests.mock_engine import probing
from loadtests.mock_engine.faults import Faults
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


def embed(body: dict[str, Any], state: State) -> GenerationRequest:
    given = body["input"] if "input" in body else chat_prompt(body)
    single = isinstance(given, str) or isinstance(given[0], int)
    texts = [_text(entry) for entry in ([given] if single else given)]
    vectors = [vector(state, _model(body, state), text) for text in texts]
    encode = _base64 if body.get("encoding_format") == "base64" else list
    counts = tuple(map(_count, texts))
    data = [{"index": i, "object": "embedding", "embedding": encode(v)} for i, v in enumerate(vectors)]
    answer = {"id": "embd-mock", "object": "list", "created": int(time.time()), "data": data}
    return _answered(body, state, answer | _said(body, state, counts), counts)


def score(body: dict[str, Any], state: State) -> GenerationRequest:
    lefts, rights = (_list(body[name]) for name in body if name in _SIDES)
    scores, counts = _similarities(body, state, lefts * (len(rights) // len(lefts)), rights)
    data = [{"index": i, "object": "score", "score": each} for i, each in enumerate(scores)]
    answer = {"id": "score-mock", "object": "list", "created": int(time.time()), "data": data}
    return _answered(body, state, answer | _said(body, state, counts), counts)


def rerank(body: dict[str, Any], state: State) -> GenerationRequest:
    documents = _list(body["documents"])
    scores, counts = _similarities(body, state, [body["query"]] * len(documents), documents)
    results: list[dict[str, Any]] = [
        {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": each}
        for i, (text, each) in enumerate(zip(documents, scores, strict=True))
    ]
    results.sort(key=lambda result: result["relevance_score"], reverse=True)
    answer = {"id": "score-mock", "results": results[: body.get("top_n") or None]}
    return _answered(body, state, answer | _said(body, state, counts), counts)


def vector(state: State, model: str, text: str) -> list[float]:
    """Depends on the text and on the model's weights alone. Has length 1."""
    seed = f"{model}/{state.contents[model]}" if model in state.contents else state.spec.root
    return _unit(f"{seed}/{text}", state.spec.dimensions)


def is_probe(body: Any) -> bool:
    """Whether it is a probe: Florin sends no client's `user`."""
    return isinstance(body, dict) and "user" in body


def probed(body: dict[str, Any], state: State, faults: Faults, *, distinct: str) -> tuple[int, bytes]:
    """As `probing.probed`."""
    model = _model(body, state)
    refusal = probing.refused(model, state, faults)
    if refusal is not None:
        return refusal
    seed = probing.weights(model, state, faults, distinct)
    texts = _list(body.get("input") or body["queries"])
    vectors = [_unit(f"{seed}/{text}", state.spec.dimensions) for text in texts]
    data = [{"index": i, "embedding": v, "score": v[0]} for i, v in enumerate(vectors)]
    return 200, orjson.dumps({"data": data, **_said(body, state, tuple(map(_count, texts)))})


def _unit(seed: str, dimensions: int) -> list[float]:
    source = random.Random(seed)
    numbers = [source.gauss(0, 1) for _ in range(dimensions)]
    length = math.hypot(*numbers)
    return array("f", [number / length for number in numbers]).tolist()


_SIDES = ("queries", "documents", "items", "data_1", "data_2", "text_1", "text_2")


def _similarities(
    body: dict[str, Any], state: State, lefts: list[str], rights: list[str]
) -> tuple[list[float], tuple[int, ...]]:
    model = _model(body, state)
    pairs = list(zip(lefts, rights, strict=True))
    scores = [sum(map(mul, vector(state, model, a), vector(state, model, b))) for a, b in pairs]
    return scores, tuple(map(_count, [*dict.fromkeys(lefts), *rights]))


def _said(body: dict[str, Any], state: State, counts: tuple[int, ...]) -> dict[str, Any]:
    usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts), "completion_tokens": 0}
    return {"model": _model(body, state), "usage": usage | {"prompt_tokens_details": None}}


def _model(body: dict[str, Any], state: State) -> str:
    return str(body.get("model") or state.spec.base)


def _list(texts: Any) -> list[str]:
    return texts if isinstance(texts, list) else [texts]


def _text(given: Any) -> str:
    return given if isinstance(given, str) else " ".join(map(str, given))


def _count(text: str) -> int:
    return 1 + text.count(" ")


def _base64(numbers: list[float]) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


def _answered(
    body: dict[str, Any], state: State, answer: dict[str, Any], prompts: tuple[int, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        chat=False,
        model=_model(body, state),
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
    "/v1/embeddings": embed,
    "/v1/score": score,
    "/v1/rerank": rerank,
}
_TASKS = {"/v1/embeddings": "embed", "/v1/score": "score", "/v1/rerank": "score"}


def serves(path: str) -> bool:
    return path in _ROUTES


def task(path: str) -> str:
    """What an engine must be for to serve a route; empty: any engine does."""
    return _TASKS.get(path, "")


def parse(path: str, body: dict[str, Any], state: State) -> GenerationRequest:
    """A request whose answer is known. Raises BadRequestError with vLLM's message."""
    try:
        return _ROUTES[path](body, state)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadRequestError(f"1 validation error: {error!r}", "body", "Bad Request") from error
