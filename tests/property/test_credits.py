"""Grants and draws neither make nor lose a cent, in whatever order grants are made and months are closed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.credits.grants import Grant, after, draw, holdings_in
from tests.support.search import examples

MONTHS = [f"2026-{month:02}" for month in range(1, 7)]


@st.composite
def grants(sample: st.DrawFn) -> tuple[int, Grant]:
    """A grant, and the number of months that are closed when it is made."""
    known = sample(st.integers(0, len(MONTHS) - 1))
    begins = sample(st.integers(known, len(MONTHS) - 1))
    ends = sample(st.none() | st.integers(begins, len(MONTHS) - 1))
    return known, Grant(
        id=0, tenant="acme", cents=sample(st.integers(1, 2000)), begins=MONTHS[begins],
        ends="" if ends is None else MONTHS[ends], priority=sample(st.integers(0, 2)), reason="",
        reference="", granted_at=0, granted_by="",
    )  # fmt: skip  # one name a line says no more


@given(st.lists(grants(), max_size=8), st.lists(st.integers(-500, 3000), min_size=6, max_size=6))
@examples(200)
def test_no_cent_is_made_or_lost(made: list[tuple[int, Grant]], dues: list[int]) -> None:
    known: list[Grant] = []
    closing = granted = drawn = expired = 0
    for number, (month, due) in enumerate(zip(MONTHS, dues, strict=True)):
        known += [replace(grant, id=100 * number + n) for n, (at, grant) in enumerate(made) if at == number]
        credits_of_month = draw(holdings_in(month, known).get("acme", ()), month, due)
        assert credits_of_month.opening == closing
        assert credits_of_month.granted == sum(g.cents for g in known if g.begins == month)
        assert credits_of_month.drawn == min(max(due, 0), credits_of_month.available)
        closing = credits_of_month.closing
        granted += credits_of_month.granted
        drawn += credits_of_month.drawn
        expired += credits_of_month.expired
        known = after(known, {part.grant: part.cents for part in credits_of_month.draws})
        assert all(0 <= grant.drawn <= grant.cents for grant in known)
        assert granted == drawn + expired + closing


@given(st.permutations(range(5)), st.lists(grants(), min_size=5, max_size=5), st.integers(0, 5000))
@examples(100)
def test_the_order_in_which_they_are_read_does_not_matter(
    order: list[int], made: list[tuple[int, Grant]], due: int
) -> None:
    numbered = [replace(grant, id=n) for n, (_, grant) in enumerate(made)]
    shuffled = [numbered[n] for n in order]
    month = MONTHS[-1]
    both = [draw(holdings_in(month, known).get("acme", ()), month, due) for known in (numbered, shuffled)]
    assert both[0] == both[1]
