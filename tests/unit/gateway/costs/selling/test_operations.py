"""Lines of a rate card: a request has exactly one, and a mistake is named where it is."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.costs.prices.jumps import UnconfirmedJumpError
from gateway.costs.selling.assignments import RateCards, check_card_jump
from gateway.costs.selling.card_lines import PriceKey
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.operations import card_of
from gateway.costs.selling.schemas import NewRateCard
from gateway.errors import FlorinError

PRICES = {"input_per_million": "1", "output_per_million": "2"}


def made(*lines: dict[str, Any], **changes: Any) -> RateCard:
    body = {"name": "standard", **PRICES, "lines": [PRICES | line for line in lines], **changes}
    return card_of(NewRateCard.model_validate(body), 0)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (PriceKey("acme/x", "large", "score", "H100", "batch"), "x"),
        (PriceKey("acme/y", "large", "score", "H100", "batch"), "large-h100"),
        (PriceKey("", "large", "generate", "L40S", "batch"), "large-batch"),
        (PriceKey("", "large", "generate", "L40S"), "large"),
        (PriceKey("acme/x", "small", "embed", "H100"), "x"),
        (PriceKey("", "small", "generate", "H100", "batch"), "h100"),
        (PriceKey("", "small", "embed", "H100"), "embed"),
        (PriceKey("", "large", "embed", "L40S"), "large-embed"),
        (PriceKey("", "small", "generate", "L40S", "batch"), "batch"),
        (PriceKey("", "small", "generate", "L40S"), ""),
    ],
)
def test_the_most_specific_line_prices_a_request(key, line):
    lines = (
        {"name": "batch", "service_tier": "batch"},
        {"name": "h100", "gpu_type": "H100"},
        {"name": "large", "base_model": "large"},
        {"name": "large-batch", "base_model": "large", "service_tier": "batch"},
        {"name": "large-h100", "base_model": "large", "gpu_type": "H100"},
        {"name": "x", "adapter": "acme/x"},
        {"name": "embed", "task": "embed"},
        {"name": "large-embed", "base_model": "large", "task": "embed"},
    )
    for order in (lines, lines[::-1]):
        assert made(*order).line_for(key).name == line


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"name": "all"}], "Line all is for everything, as the card's own prices are"),
        (
            [{"name": "a", "base_model": "m"}, {"name": "b", "base_model": "m"}],
            "Lines a and b are for the same",
        ),
        ([{"name": "a", "base_model": "m"}, {"name": "a", "base_model": "n"}], "Two lines are called a"),
        ([{"name": "a", "base_model": "m", "residency_per_adapter_hour": "1"}], "names no adapter"),
        ([{"name": "A b", "base_model": "m"}], "not a name for a line of a rate card"),
        ([{"name": "a", "base_model": "m", "per_request": "x"}], "'x' is not valid"),
        (
            [{"name": "a", "base_model": "m", "tiers": [{"kind": "input", "above": 5, "price": "1"}] * 2}],
            "Two tiers of one kind begin at the same quantity",
        ),
    ],
)
def test_what_cannot_be_is_refused(lines, why):
    with pytest.raises(FlorinError, match=why):
        made(*lines)


def test_a_slip_in_a_line_needs_a_confirmation():
    before = made({"name": "large", "base_model": "large"}, valid_from="2026-10")
    after = made({"name": "large", "base_model": "large", "output_per_million": "20"}, valid_from="2026-11")
    with pytest.raises(UnconfirmedJumpError, match="standard, line large, in USD would be 20"):
        check_card_jump(RateCards([before]), after)
    new = made({"name": "other", "base_model": "large", "output_per_million": "20"}, valid_from="2026-11")
    check_card_jump(RateCards([before]), new)
