"""What no engine may answer to requests that generate nothing."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import orjson
import pytest

from gateway.dataplane.request import Call, Endpoint, parse
from gateway.dialects.engine_routes import DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from gateway.fields.rule import FieldPolicy
from gateway.routing.answer_kinds import read_kind
from gateway.routing.engine_answers import MalformedError


def call(endpoint: Endpoint, **body: Any) -> Call:
    return parse(endpoint, orjson.dumps({"model": "m", **body}), FieldPolicy())


def encoded(*numbers: float) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


NOT_ANSWERS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b'{"data": {}}',
    b'{"results": 1}',
    b'{"tokens": 1}',
    b'{"prompt": 1}',
]


@pytest.mark.parametrize("endpoint", [TOKENIZE, DETOKENIZE, EMBEDDINGS, RERANK, SCORE], ids=lambda e: e.path)
def test_bodies_that_are_no_answers(endpoint: Endpoint):
    bodies: dict[str, dict[str, Any]] = {
        TOKENIZE.path: {"prompt": "a"}, DETOKENIZE.path: {"tokens": [1]}, EMBEDDINGS.path: {"input": "a"},
        RERANK.path: {"query": "a", "documents": "b"}, SCORE.path: {"queries": "a", "documents": "b"},
    }  # fmt: skip
    for body in NOT_ANSWERS:
        with pytest.raises(MalformedError):
            read_kind(body, call(endpoint, **bodies[endpoint.path]))


ONE = '{"index": 0, "embedding": [0.5]}'
RUBBISH = {
    "no data": "{}",
    "a list": "[]",
    "choices": '{"choices": [{"index": 0, "message": {}}]}',
    "too few": f'{{"data": [{ONE}]}}',
    "an index twice": f'{{"data": [{ONE}, {ONE}]}}',
    "an index out of range": f'{{"data": [{ONE}, {{"index": 2, "embedding": [0.5]}}]}}',
    "an index that is a bool": f'{{"data": [{ONE}, {{"index": true, "embedding": [0.5]}}]}}',
    "null": f'{{"data": [{ONE}, null]}}',
    "no vector": f'{{"data": [{ONE}, {{"index": 1}}]}}',
    "an empty vector": '{"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}]}',
    "not a number": f'{{"data": [{ONE}, {{"index": 1, "embedding": [null]}}]}}',
    "a bool": f'{{"data": [{ONE}, {{"index": 1, "embedding": [true]}}]}}',
    "vectors of vectors": f'{{"data": [{ONE}, {{"index": 1, "embedding": [[0.5]]}}]}}',
    "another length": f'{{"data": [{ONE}, {{"index": 1, "embedding": [0.5, 0.5]}}]}}',
    "base64, not asked for": f'{{"data": [{ONE}, {{"index": 1, "embedding": "AAAAAA=="}}]}}',
}  # fmt: skip


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
def test_vectors_that_cannot_be(rubbish: str):
    with pytest.raises(MalformedError):
        read_kind(rubbish.encode(), call(EMBEDDINGS, input=["a", "b"]))


VECTORS = {
    "a list": [0.5],
    "empty": "",
    "not base64": "????",
    "a newline": encoded(0.5) + "\n",
    "unpadded": encoded(0.5).rstrip("="),
    "half a number": base64.b64encode(b"abcdef").decode(),
    "not a number": encoded(0.5, float("nan")),
    "infinite": encoded(0.5, float("inf"), float("-inf")),
}


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_base64_that_cannot_be(vector: object):
    asked = call(EMBEDDINGS, input="a", encoding_format="base64")
    sound = {"data": [{"index": 0, "embedding": encoded(0.5, -1e-30)}], "model": "m"}
    assert read_kind(orjson.dumps(sound), asked) == sound
    with pytest.raises(MalformedError):
        read_kind(orjson.dumps({"data": [{"index": 0, "embedding": vector}]}), asked)


SCORES = {
    "/v1/rerank": [
        "{}",
        '{"results": [{"index": 0, "relevance_score": 1}]}',
        '{"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}',
        '{"results": [{"index": 0, "relevance_score": 1}, {"index": 7, "relevance_score": 1}]}',
        '{"results": [{"index": 0, "relevance_score": 1}, {"index": 1, "relevance_score": "1"}]}',
    ],
    "/v1/score": [
        "{}",
        '{"data": [{"index": 0, "score": 1}]}',
        '{"data": [{"index": 0, "score": 1}, {"index": 1, "score": null}]}',
    ],
}


@pytest.mark.parametrize(("path", "rubbish"), [(p, r) for p, rs in SCORES.items() for r in rs])
def test_scores_that_cannot_be(path: str, rubbish: str):
    one = call(RERANK, query="a", documents=["b", "c"]) if path == RERANK.path else None
    with pytest.raises(MalformedError):
        read_kind(rubbish.encode(), one or call(SCORE, queries="a", documents=["b", "c"]))


def test_a_ranking_has_as_many_results_as_were_asked_for():
    results = [{"index": 1, "relevance_score": 1}, {"index": 0, "relevance_score": 0.5}]
    for top, count in ((0, 2), (1, 1), (9, 2)):
        answer = orjson.dumps({"results": results[:count]})
        asked = call(RERANK, query="a", documents=["b", "c"], top_n=top)
        assert len(read_kind(answer, asked)["results"]) == count
        with pytest.raises(MalformedError):
            read_kind(orjson.dumps({"results": results[: 3 - count]}), asked)


TOKENS = [
    "[]",
    '{"count": 1}',
    '{"count": 2, "tokens": [1]}',
    '{"count": 1, "tokens": ["1"]}',
    '{"count": 1, "tokens": [true]}',
    '{"count": 1, "tokens": [1], "token_strs": []}',
    '{"choices": []}',
]


@pytest.mark.parametrize("rubbish", TOKENS)
def test_tokens_that_cannot_be(rubbish: str):
    with pytest.raises(MalformedError):
        read_kind(rubbish.encode(), call(TOKENIZE, prompt="a"))
