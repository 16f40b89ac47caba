"""Sketches of vectors, and what is concluded from them."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from adapters.model import dump
from adapters.placement import vectors
from adapters.placement.fingerprint import (
    CONTEXTS,
    LIKE_BASE_POOLED,
    NOISE,
    ProbeAnswer,
    Similarity,
    answer_of,
    distance,
    evidence,
    fingerprint,
    judge,
    one_token,
    parse,
    request,
)


def unit(seed: object, length: int = 1024) -> list[float]:
    source = Random(str(seed))
    numbers = [source.gauss(0, 1) for _ in range(length)]
    size = math.hypot(*numbers)
    return [number / size for number in numbers]


def moved(vector: list[float], by: float, seed: object) -> list[float]:
    """A vector whose direction is about `by` away."""
    return [a + by * b for a, b in zip(vector, unit(seed, len(vector)), strict=True)]


def answered(rows: list[list[float]]) -> ProbeAnswer:
    data = [{"index": at, "embedding": row} for at, row in enumerate(rows)]
    return parse({"data": data[::-1], "usage": {"prompt_tokens": 40}}, "embed")


BASE = [unit(at) for at in range(len(CONTEXTS))]


def off(by: float, seed: object = "x") -> ProbeAnswer:
    return answered([moved(row, by, f"{seed}{at}") for at, row in enumerate(BASE)])


@pytest.mark.parametrize("by", [0.0, 0.001, 0.01, 0.1, 0.5])
def test_sketches_are_as_far_apart_as_their_vectors(by: float):
    true = sum(math.dist(row, moved(row, by, f"x{at}")) for at, row in enumerate(BASE)) / len(BASE)
    assert distance(answered(BASE), off(by)) == pytest.approx(true, rel=0.3, abs=1e-5)


def test_a_sketch_is_small_and_does_not_depend_on_the_vectors_length():
    for length in (1, 16, 1024, 8192):
        vector = unit(0, length)
        assert vectors.sketch([7 * number for number in vector]) == pytest.approx(
            vectors.sketch(vector), abs=2e-6
        )
    stored = dump(fingerprint(answered(BASE), engine="e", gpu_type="h100", taken=1))
    assert len(stored) < 4_000


def test_a_fingerprint_gives_the_answer_back():
    print_ = fingerprint(answered(BASE), engine="e", gpu_type="h100", taken=1)
    known = answer_of(print_)
    assert known is not None
    assert (known.texts, known.logprobs, known.prompt) == ((), answered(BASE).logprobs, "v1")
    assert answer_of(replace(print_, prompt="v0")) is None
    assert distance(known, replace(known, prompt="1")) == 20.0  # texts are not comparable to vectors


@pytest.mark.parametrize(
    ("by", "noise", "result"),
    [
        (0.0, 0.0, Similarity.LIKE_BASE),
        (0.001, 0.0, Similarity.LIKE_BASE),
        (0.02, 0.0, Similarity.SOUND),
        (0.02, 0.01, Similarity.LIKE_BASE),
        (0.3, 0.01, Similarity.SOUND),
        (0.5, 9.0, Similarity.SOUND),  # noise alone never makes an effect invisible
    ],
)
def test_an_adapter_has_an_effect_beyond_the_noise(by: float, noise: float, result: Similarity):
    base = replace(answered(BASE), noise=noise)
    judgement = judge(off(by), base=base, first=None, first_base=None)
    assert judgement.result is result
    assert judgement.like == pytest.approx(min(0.15, max(LIKE_BASE_POOLED, NOISE * noise)))
    assert judge(off(by), base=base, first=None, first_base=None, trusted=True).result is Similarity.SOUND


def test_a_version_keeps_its_vectors():
    base = answered(BASE)
    again = judge(off(1), base=base, first=off(1), first_base=base)
    assert (again.result, again.to_first) == (Similarity.SOUND, 0)
    other = judge(off(1, "y"), base=base, first=off(1), first_base=base)
    assert other.result is Similarity.UNLIKE_ITSELF
    suspect = judge(off(1, "y"), base=off(1, "z"), first=off(1), first_base=base)
    assert suspect.result is Similarity.SUSPECT
    shown = evidence(other, off(1, "y"), engine="e", base=base, first=None)
    assert shown["answers"] == []
    assert orjson.dumps(shown)


NOT_VECTORS: list[Any] = [
    None,
    [],
    "AAAA",
    [None],
    [True],
    ["1"],
    [0.0, 0.0],
    [math.inf],
    [math.nan],
    [0.0] * 70_000,
]


@pytest.mark.parametrize("vector", NOT_VECTORS, ids=lambda v: str(v)[:20])
def test_what_is_no_vector(vector: Any):
    with pytest.raises(ValueError):
        vectors.sketch(vector)


def test_scores_are_compared_number_by_number():
    def scored(*scores: Any) -> ProbeAnswer:
        data = [{"index": at, "score": score} for at, score in enumerate(scores)]
        return parse({"data": data, "usage": {"prompt_tokens": 9, "completion_tokens": None}}, "score")

    one, other = scored(*[0.5] * 8), scored(*[0.5] * 7, 0.58)
    assert (one.prompt_tokens, one.completion_tokens) == (9, 0)
    assert distance(one, other) == pytest.approx(0.01)
    assert judge(other, base=one, first=None, first_base=None).result is Similarity.SOUND
    assert judge(one, base=one, first=None, first_base=None).result is Similarity.LIKE_BASE
    for bad in ([0.5] * 7, [0.5] * 7 + ["1"], [0.5] * 7 + [None]):
        with pytest.raises((ValueError, KeyError, TypeError)):
            scored(*bad)


def test_what_engines_are_asked():
    assert set(request("m", "s", "embed")) == {"model", "input", "user", "cache_salt"}
    pairs = request("m", "s", "score")
    assert len(pairs["queries"]) == len(pairs["documents"]) == len(CONTEXTS)
    assert not any(a == b for a, b in zip(pairs["queries"], pairs["documents"], strict=True))
    assert one_token("m", "s", "embed")["input"] == ["1"]
