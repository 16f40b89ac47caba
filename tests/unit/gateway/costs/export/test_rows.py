"""The division of money, alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, csv_text
from gateway.costs.export.chargeback import split
from gateway.costs.export.infrastructure import ratios

amounts = st.integers(-(10**18), 10**18)


@given(st.lists(amounts, max_size=30))
def test_ratios_sum_to_one_or_are_not_given(parts):
    found = ratios(parts)
    if sum(parts) == 0:
        assert found == [None] * len(parts)
    else:
        assert sum(ratio.units for ratio in found) == 10**12


def line(nano, weights, tokens, *, correction=False):
    prompt, cached, output = tokens
    return CostLine(
        (),
        "usage",
        "H100",
        "",
        "on_demand",
        1,
        0,
        correction,
        "",
        1,
        prompt + cached,
        cached,
        output,
        0,
        nano,
        *weights,
        0,
    )


@given(amounts, st.tuples(amounts, amounts, amounts), st.tuples(amounts, amounts, amounts))
def test_a_split_loses_nothing_whatever_the_line(nano, weights, tokens):
    parts, rest = split(line(nano, weights, tokens, correction=True), tokens)
    assert sum(parts) + rest == nano
    for part, count in zip(parts, tokens, strict=True):
        assert part == 0 or part * count > 0  # so that the unit price is one


def test_cells():
    assert [csv_text(cell) for cell in (None, True, False, 7, Fixed(1_234_567, 0), Fixed(-5, 9), "-x", "x")] == [
        "", "true", "false", "7", "1234567.00", "-0.000000005", "'-x", "x",
    ]  # fmt: skip
