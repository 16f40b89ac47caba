"""The mathematics, against dense numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.conversion.arrays import decode, encode, rounded
from adapters.conversion.factors import Factors, distance, joined, norm, rank_keeping, spectrum
from tests.support.search import examples


@st.composite
def factors(draw, shape: tuple[int, int] | None = None):
    out, size_in = shape or (draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    rank = draw(st.integers(1, 14))  # also above what the shape can have
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    a = numbers.standard_normal((rank, size_in)).astype(np.float32)
    b = numbers.standard_normal((out, rank)).astype(np.float32)
    return Factors(a, b, draw(st.sampled_from((0.25, 1.0, 2.0, 5.656854))))


def dense(made: Factors) -> np.ndarray:
    return made.scaling * (made.b.astype(np.float64) @ made.a.astype(np.float64))


@examples(30)
@given(factors(), st.integers(1, 14))
def test_a_truncation_is_the_best_of_its_rank(made, rank):
    found = spectrum(made)
    values = np.linalg.svd(dense(made), compute_uv=False)
    both = min(len(values), len(found.values))  # what only one of them has is zero
    assert np.allclose(found.values[:both], values[:both], atol=1e-5 * values[0])
    error = np.linalg.norm(dense(made) - dense(found.truncated(rank)))
    best = np.sqrt((values[rank:] ** 2).sum())
    assert error == pytest.approx(best, abs=1e-5 * values[0])
    assert distance(made, found.truncated(rank)) == pytest.approx(error, abs=1e-6 * values[0])


@examples(30)
@given(st.data(), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_a_sum_is_exact(data, shape):
    parts = [(data.draw(factors(shape)), data.draw(st.sampled_from((-0.5, 0.0, 1.0, 3.0)))) for _ in range(3)]
    expected = sum(weight * dense(made) for made, weight in parts)
    summed = joined(parts)
    assert np.allclose(dense(summed), expected, atol=1e-5 * (1 + np.abs(expected).max()))
    assert norm(summed) == pytest.approx(np.linalg.norm(expected), abs=1e-4)
    assert summed.scaling > 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0.01, 1))
def test_the_rank_that_keeps_a_share_is_the_smallest(values, energy):
    squares = np.sort(np.array(values))[::-1]
    rank = rank_keeping(squares, energy)
    total = (squares**2).sum()
    assert 1 <= rank <= len(squares)
    assert (squares[:rank] ** 2).sum() >= energy * total * (1 - 1e-9)
    assert rank == 1 or (squares[: rank - 1] ** 2).sum() < energy * total


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50))
def test_bfloat16_keeps_every_value_that_it_has(bits):
    stored = np.array(bits, "<u2")
    stored = stored[np.isfinite(decode(stored, "BF16"))]
    assert np.array_equal(encode(decode(stored, "BF16"), "BF16"), stored)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 + 2**-8, 1.0),  # a tie goes to the even one
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-(1 + 3 * 2**-8), -(1 + 2**-6)),
        (3.4e38, np.inf),
        (np.inf, np.inf),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value, expected):
    assert rounded(np.array([value], np.float32), "BF16")[0] == np.float32(expected)


def test_bfloat16_keeps_nan():
    assert np.isnan(rounded(np.array([np.nan], np.float32), "BF16")).all()
