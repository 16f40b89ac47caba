"""What a JSON text becomes is known before it is parsed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.complexity import Complexity, check, measure
from gateway.errors import FlorinError
from tests.support.search import examples

MIB = 1024 * 1024
DEFAULT = Complexity(values=400_000, containers=20_000, depth=20_000)


def count(value: Any) -> Complexity:
    """The same, of what was parsed."""
    if isinstance(value, dict):
        parts = [count(v) for v in value.values()]
        names = len(value)
    elif isinstance(value, list):
        parts, names = [count(v) for v in value], 0
    else:
        return Complexity(1, 0, 0)
    return Complexity(
        1 + names + sum(p.values for p in parts),
        1 + sum(p.containers for p in parts),
        1 + max((p.depth for p in parts), default=0),
    )


TEXTS = st.text(st.sampled_from('"\\,:[]{}aé\n\t/u0'), max_size=12)
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXTS, v, max_size=4), max_leaves=20
)


@examples(100)
@given(VALUES)
def test_it_counts_at_least_what_the_parser_makes_and_nothing_within_strings(value):
    raw = orjson.dumps(value)
    found, true = measure(raw), count(orjson.loads(raw))
    assert (found.containers, found.depth) == (true.containers, true.depth)
    # An empty container is counted as if it held something.
    assert true.values <= found.values <= true.values + true.containers


@examples(20)
@given(VALUES)
def test_many_strings_are_counted_as_few_are(value):
    """A long text, and one with thousands of strings, are counted in other ways."""
    one, many = measure(orjson.dumps([value])), measure(orjson.dumps([value] * 2000))
    assert (many.containers, many.depth) == (1 + 2000 * (one.containers - 1), one.depth)
    assert many.values == 1 + 2000 * (one.values - 1)


@examples(100)
@given(VALUES, st.integers(0, 30), st.integers(0, 10), st.integers(0, 6))
def test_what_is_let_in_is_within_the_limit_and_what_is_within_it_with_room_is_let_in(value, v, c, d):
    raw, true = orjson.dumps(value), count(value)
    try:
        check(raw, Complexity(v, c, d))
    except FlorinError:
        assert true.values + true.containers > v or true.containers > c or true.depth > d
    else:
        assert (true.values <= v, true.containers <= c, true.depth <= d) == (True, True, True)


@pytest.mark.parametrize(
    "raw",
    [
        orjson.dumps({"m": [{"role": "user", "content": '1,2,[3],{4}:"5"\n' * (4 * MIB // 20)}]}),
        orjson.dumps({"prompt": list(range(100_000, 300_000))}),
        orjson.dumps({"content": "\\" * MIB + '"' * MIB}),
        orjson.dumps({"messages": [{"role": "user", "content": "hello"}] * 10_000}),
        b'"' + b"\\n" * (2 * MIB) + b'"',
    ],
    ids=["csv", "200k token ids", "quotes and backslashes", "10k messages", "newlines"],
)
def test_what_people_send_passes(raw: bytes):
    check(raw, DEFAULT)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"[" + b"{}," * MIB + b"{}]", "values"),
        (b"[" + b"[1]," * 30_000 + b"[1]]", "objects and arrays"),
        (b'{"x":[' + b"1," * 500_000 + b"1]}", "values"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(300_000)) + b"}", "values"),
        (b"[" * 200_000, "objects and arrays"),
        (b'["\\\\",' + b"{}," * MIB + b"{}]", "values"),
        (b'["\\\\\\"",' + b"{}," * MIB + b'{}, "]', "values"),
    ],
    ids=["objects", "lists", "numbers", "members", "nesting", "behind a backslash", "behind a quote"],
)
def test_bodies_beyond_the_bounds_are_refused(raw: bytes, what: str):
    with pytest.raises(FlorinError, match=what) as caught:
        check(raw, DEFAULT)
    assert (caught.value.code, caught.value.status) == ("body_too_complex", 400)


def test_depth_is_bounded_where_it_is_asked_for():
    limit = Complexity(values=2000, containers=1000, depth=64)
    check(b"[" * 64 + b"]" * 64, limit)
    check(b"[" + b"[]," * 900 + b"[]]", limit)
    with pytest.raises(FlorinError, match="levels of nesting"):
        check(b"[" * 65 + b"]" * 65, limit)


@pytest.mark.parametrize("raw", [b"", b'"', b"\\", b'"\\', b"]]]]", b"\xff\x00", b'"\\"' * 50_000])
def test_rubbish_is_left_to_the_parser(raw: bytes):
    check(raw, DEFAULT)
    measure(raw)
