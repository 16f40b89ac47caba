"""Every row of the tables of embeddings, scores and tokens, with values that pass and values that do not; and
the table of embeddings against the type of OpenAI's client."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.embedding_create_params import EmbeddingCreateParams

from gateway.dataplane.request import Call, Endpoint, parse
from gateway.dialects.engine_routes import DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from gateway.errors import FlorinError
from gateway.fields.registry import without_rule
from gateway.fields.rule import FieldAction, FieldPolicy
from tests.unit.gateway.fields import samples

CHAT = [{"role": "user", "content": "Hi"}]
TEXTS: samples.Samples = (
    ["a", ["a", "b"], ["a"] * 2048],
    ["", [], [""], ["a", 1], ["a"] * 2049, 5, {"text": "a"}],
)
SWITCH: samples.Samples = ([True, False], [1, "true", "yes"])
COUNT: samples.Samples = ([0, 1, 2**31 - 1], [-1, 1.5, "1", True, 2**31])
POOLING: dict[str, samples.Samples] = {
    "truncate_prompt_tokens": ([-1, 0, 512], [-2, 1.5, "8", True]),
    "truncation_side": (["left", "right"], ["up", 1]),
    "use_activation": SWITCH,
}
SCORING: dict[str, samples.Samples] = {
    **POOLING,
    "max_tokens_per_query": COUNT,
    "max_tokens_per_doc": COUNT,
    "instruction": (["Find it."], [5, "x" * 4097]),
    "chat_template_kwargs": ([{}, {"a": 1}], [5, {"tokenize": True}]),
}
OF_CHAT: dict[str, samples.Samples] = {
    name: samples.CHAT[name]
    for name in ("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
}
CASES: dict[str, tuple[Endpoint, dict[str, Any], dict[str, samples.Samples]]] = {
    "embeddings": (
        EMBEDDINGS,
        {"input": "Hi"},
        {
            **POOLING,
            "input": ([*TEXTS[0], [1, 2], [[1], [2, 3]]], [*TEXTS[1], [[]], [1, -1], [1.5], [True], [[1], "a"], [2**31]]),
            "encoding_format": (["float", "base64"], ["bytes", "bytes_only", 5]),
            "dimensions": ([1, 1024], [0, -1, 65_537, "8"]),
            "add_special_tokens": SWITCH,
        },
    ),
    "embeddings of chats": (EMBEDDINGS, {"messages": CHAT}, OF_CHAT),
    "rerank": (
        RERANK,
        {"query": "a", "documents": ["b", "c"]},
        {**SCORING, "query": (["a"], ["", ["a"], 5]), "documents": TEXTS, "top_n": COUNT},
    ),
    "score": (SCORE, {"queries": "a", "documents": ["b", "c"]}, {**SCORING, "queries": (["a", ["a"]], TEXTS[1]), "documents": TEXTS}),
    "score of data": (SCORE, {"data_1": "a", "data_2": "b"}, {"data_1": (["a"], TEXTS[1]), "data_2": TEXTS}),
    "score of texts": (SCORE, {"text_1": "a", "text_2": "b"}, {"text_1": (["a"], TEXTS[1]), "text_2": TEXTS}),
    "score of items": (SCORE, {"queries": "a", "items": "b"}, {"items": TEXTS}),
    "tokenize": (
        TOKENIZE,
        {"prompt": "Hi"},
        {"prompt": (["", "Hi"], [["Hi"], [1], 5]), "add_special_tokens": SWITCH, "return_token_strs": SWITCH},
    ),
    "tokenize of chats": (TOKENIZE, {"messages": CHAT}, {**OF_CHAT, "tools": samples.CHAT["tools"]}),
    "detokenize": (DETOKENIZE, {"tokens": [1]}, {"tokens": ([[], [0, 2**31 - 1]], ["1", [-1], [2**31], [1.5], [True], [[1]]])}),
}  # fmt: skip
ENDPOINTS = (EMBEDDINGS, RERANK, SCORE, TOKENIZE, DETOKENIZE)


def ask(endpoint: Endpoint, body: dict[str, Any]) -> Call:
    return parse(endpoint, orjson.dumps({"model": "m", **body}), FieldPolicy())


def refusal(endpoint: Endpoint, body: dict[str, Any]) -> FlorinError:
    with pytest.raises(FlorinError) as caught:
        ask(endpoint, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_a_field_is_sent_within_its_bounds_only(case: str):
    endpoint, body, fields = CASES[case]
    for name, (good, bad) in fields.items():
        for value in good:
            assert ask(endpoint, body | {name: value}).body[name] == value, (name, value)
        for value in bad:
            assert (
                refusal(endpoint, body | {name: value}).param.partition(".")[0].partition("[")[0] == name
            ), value
        if name not in body:
            assert name not in ask(endpoint, body | {name: None}).body


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_row_that_sends_has_its_samples(endpoint: Endpoint):
    sending = {name for name, rule in endpoint.fields.items() if rule.sends and name != "chat_template"}
    sampled = [fields for at, _, fields in CASES.values() if at is endpoint]
    assert sending == {name for fields in sampled for name in fields}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_what_is_not_sent_is_dropped_or_refused_with_the_reason(endpoint: Endpoint):
    body = next(body for at, body, _ in CASES.values() if at is endpoint)
    for name, rule in endpoint.fields.items():
        assert rule.why
        for value in ["x", 1, {}] if not rule.sends and rule.check is None else []:
            if rule.action is FieldAction.REFUSE and value not in rule.harmless:
                assert refusal(endpoint, body | {name: value}).code == "unsupported_parameter"
            else:
                assert name not in ask(endpoint, body | {name: value}).body


def test_the_engine_gets_the_versions_name_and_a_salt_where_it_caches():
    for endpoint, body, _ in CASES.values():
        sent = orjson.loads(
            ask(endpoint, body | {"cache_salt": "mine", "priority": -1}).payload("fl-1", "salt")
        )
        salted = {} if endpoint in (TOKENIZE, DETOKENIZE) else {"cache_salt": "salt"}
        assert sent == body | {"model": "fl-1"} | salted


def test_inputs_are_counted():
    for endpoint, body, count in (
        (EMBEDDINGS, {"input": "a b"}, 1),
        (EMBEDDINGS, {"input": ["a", "b"]}, 2),
        (EMBEDDINGS, {"input": [1, 2, 3]}, 1),
        (EMBEDDINGS, {"input": [[1], [2, 3]]}, 2),
        (EMBEDDINGS, {"messages": CHAT}, 1),
        (RERANK, {"query": "a", "documents": ["b", "c", "d"]}, 3),
        (SCORE, {"queries": ["a", "b"], "documents": ["c", "d"]}, 2),
        (SCORE, {"queries": "a", "documents": "b"}, 1),
    ):
        call = ask(endpoint, body)
        assert (call.prompts, call.n, call.choices) == (count, 1, 0)


def test_no_field_of_openais_client_is_without_a_rule():
    assert without_rule({"embeddings": sorted(EmbeddingCreateParams.__annotations__)}) == []
