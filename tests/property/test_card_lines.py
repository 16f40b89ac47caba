"""What a month costs by a rate card with lines: as recomputed from its document, in exact fractions, and the same
however the usage came in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.selling.card_lines import (
    KINDS,
    NO_TOKENS,
    CardLine,
    PriceKey,
    Tier,
    Tokens,
    added,
    in_order,
    most_specific_first,
)
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import charge
from tests.support.search import examples
from tests.support.statement_recomputation import charges_of
from tests.unit.gateway.costs.selling.cards import card

MONTH = "2026-10"
micros = st.integers(0, 5_000_000)
free = st.integers(0, 3_000_000)
adapters = st.sampled_from(("", "acme/a", "acme/b"))
models = st.sampled_from(("", "small", "large"))
gpus = st.sampled_from(("", "H100", "L40S"))
tasks = st.sampled_from(("generate", "embed"))
service_tiers = st.sampled_from(("", "batch"))
keys = st.builds(PriceKey, adapters, models, tasks, gpus, service_tiers)
quantities = st.builds(
    lambda a, b, c, part, requests: Tokens(a, b, c, c * part // 10, requests),
    *(st.integers(0, 4_000_000) for _ in range(3)),
    st.integers(0, 10),
    st.integers(0, 50),
)
TOKENS = KINDS[:-1]
tiers = st.lists(
    st.builds(Tier, st.sampled_from(TOKENS), st.integers(1, 6_000_000), micros),
    max_size=5,
    unique_by=lambda tier: (tier.kind, tier.above),
).map(in_order)


@st.composite
def prices(draw: st.DrawFn, requests: st.SearchStrategy[int]) -> dict:
    return {
        "input_micros": draw(micros),
        "cached_micros": draw(micros),
        "output_micros": draw(micros),
        "reasoning_micros": draw(st.none() | micros),
        "request_micros": draw(requests),
        "free_input": draw(free),
        "free_cached": draw(free),
        "free_output": draw(free),
        "tiers": draw(tiers),
        "volume": draw(st.booleans()),
    }


@st.composite
def cards(draw: st.DrawFn, requests: st.SearchStrategy[int] = micros) -> RateCard:
    own = st.builds(PriceKey, adapters, models, st.just("") | tasks, gpus, service_tiers)
    selectors = draw(st.lists(own.filter(any), max_size=4, unique=True))
    lines = [
        CardLine(name=f"line-{n}", **selector._asdict(), **draw(prices(requests)))
        for n, selector in enumerate(selectors)
    ]
    return card(
        **draw(prices(requests)),
        lines=tuple(most_specific_first(lines)),
        batch_percent=draw(st.integers(0, 100)),
        discount_percent=draw(st.sampled_from((0, 7, 100))),
        minimum_micros=draw(st.sampled_from((0, 3_333_333))),
    )


def summed(used: list[tuple[PriceKey, Tokens]]) -> dict[PriceKey, Tokens]:
    sums: dict[PriceKey, Tokens] = {}
    for key, tokens in used:
        sums[key] = added(sums.get(key, NO_TOKENS), tokens)
    return sums


@examples(150)
@given(terms=cards(), used=st.lists(st.tuples(keys, quantities), max_size=6))
def test_a_month_costs_what_an_accountant_makes_of_its_terms(
    terms: RateCard, used: list[tuple[PriceKey, Tokens]]
):
    sums = summed(used)
    counts = {tuple(key): Counter(tokens._asdict()) for key, tokens in sums.items()}
    assert charge(terms, MONTH, sums).amount == charges_of(terms.document(), MONTH, counts, {}).amount


@examples(150)
@given(
    terms=cards(requests=st.just(0)),
    key=keys,
    usage=quantities,
    cuts=st.lists(st.tuples(*(st.integers(0, 100) for _ in range(3))), min_size=1, max_size=5),
)
def test_any_split_into_requests_costs_the_same(terms: RateCard, key: PriceKey, usage: Tokens, cuts: list):
    """Also over engines, models and adapters, where the same line prices them."""
    left, parts = usage, []
    for shares in cuts:
        part = Tokens(*(n * share // 100 for n, share in zip(left[:3], shares, strict=True)))
        part = part._replace(reasoning=min(left.reasoning, part.output), requests=1)
        rest = Tokens(*(a - b for a, b in zip(left, part, strict=True)))
        if rest.reasoning > rest.output:
            continue
        left = rest
        parts.append(part)
    parts.append(left)
    line = terms.line_for(key)
    same_line = [
        other
        for other in (
            PriceKey(a, m, t, g, key.service_tier)
            for a in ("", "acme/a")
            for m in ("", "large")
            for t in ("generate", "embed")
            for g in ("", "L40S")
        )
        if terms.line_for(other).name == line.name
    ] or [key]
    spread = [(same_line[n % len(same_line)], part) for n, part in enumerate(parts)]
    assert charge(terms, MONTH, summed(spread)).amount == charge(terms, MONTH, {key: usage}).amount
    prices_of_requests = sum(terms.list_price(key, part) for part in parts)
    assert prices_of_requests == terms.list_price(key, usage), "a request is not rounded either"


@given(terms=cards())
def test_what_is_stored_is_the_card(terms: RateCard):
    assert RateCard.of_row(terms.row()) == terms
