from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gateway.evaluations.scoring import (
    BadPlanError,
    answer_text,
    exact,
    json_schema,
    log_likelihood,
    regex,
)


def test_exact_ignores_white_space_around():
    assert exact(" Yes.\n", "Yes.") == 1
    assert exact("yes.", "Yes.") == 0
    assert exact("", None) == 0


def test_a_regex_is_found_anywhere_and_takes_linear_time():
    assert regex("[0-9]{2}")("room 12", None) == 1
    assert regex("^[0-9]{2}$")("room 12", None) == 0
    assert regex("(a+)+$")("a" * 200_000 + "b", None) == 0  # years, to an engine that backtracks


@pytest.mark.parametrize(
    "pattern", ["", "x" * 1001, "(", "(?=x)", r"(x)\1", "((x{1000}){1000}){1000}"], ids=lambda p: p[:12]
)
def test_what_the_engine_cannot_do_is_refused(pattern: str):
    with pytest.raises(BadPlanError) as refused:
        regex(pattern)
    assert refused.value.param == "pattern"


def test_a_schema_checks_json_only():
    check = json_schema(json.dumps({"type": "object", "properties": {"id": {"pattern": "^[a-z]+$"}}}))
    assert check('{"id": "abc"}', None) == 1
    assert check('{"id": "ABC"}', None) == 0
    assert check("```json\n{}\n```", None) == 0
    assert check("[" * 5000, None) == 0


DOUBLING = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}
DOUBLING["$defs"]["d40"] = {}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "cannot be used"),
        ("[]", "an object"),
        ('{"type": "strin"}', "strin"),
        ('{"$ref": "http://127.0.0.1:9/x"}', "pointer within it"),
        ('{"$ref": "file:///etc/passwd"}', "pointer within it"),
        ('{"$ref": "#/$defs/none"}', "leads nowhere"),
        ('{"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}', "refers to itself"),
        ('{"$id": "http://127.0.0.1:9/x"}', "`.id` is not supported"),
        ('{"pattern": "(?=a)"}', "cannot be used"),
        (json.dumps(DOUBLING | {"$ref": "#/$defs/d0"}), "references written out"),
        ('{"enum": ["' + "x" * 70_000 + '"]}', "at most"),
    ],
)
def test_schemas_that_are_wrong_fetch_or_never_end_are_refused(schema: str, why: str):
    with pytest.raises(BadPlanError, match=why):
        json_schema(schema)


def test_a_schema_may_have_references():
    check = json_schema('{"$defs": {"a/b": {"type": "integer"}}, "items": {"$ref": "#/$defs/a~1b"}}')
    assert (check("[1, 2]", None), check('["x"]', None)) == (1, 0)


def echoed(tokens: list[tuple[str, float | None]], generated: int = 1) -> dict[str, Any]:
    """An answer of vLLM's to `echo` with `logprobs`."""
    return {
        "choices": [
            {
                "text": "".join(token for token, _ in tokens),
                "logprobs": {"tokens": [t for t, _ in tokens], "token_logprobs": [p for _, p in tokens]},
            }
        ],
        "usage": {"completion_tokens": generated},
    }


def test_the_likelihood_is_that_of_the_completion_alone():
    tokens = [("<s>", None), ("Two", -9.0), (" and", -9.0), (" two", -0.5), (" is", -0.25), ("!", -7.0)]
    assert log_likelihood(echoed(tokens), " two is") == (pytest.approx(-0.75), 2)
    assert log_likelihood(echoed(tokens), "nd two is") == (pytest.approx(-9.75), 3)  # reaches into " and"
    assert log_likelihood(echoed(tokens), "x" * 100) is None
    assert log_likelihood(echoed([("<s>", None), ("Hi", None), ("!", -1.0)]), "Hi") is None
    assert log_likelihood(echoed([("Hi", -math.inf), ("!", -1.0)]), "Hi") is None
    for rubbish in ({}, {"choices": []}, {"choices": [{"logprobs": None}]}, None, echoed([])):
        assert log_likelihood(rubbish, "Hi") is None


def test_the_text_of_an_answer():
    assert answer_text({"choices": [{"message": {"content": "Hi"}}]}) == "Hi"
    assert answer_text({"choices": [{"text": "Hi"}]}) == "Hi"
    for nothing in ({}, None, {"choices": []}, {"choices": [{"message": {"content": None}}]}):
        assert answer_text(nothing) is None
