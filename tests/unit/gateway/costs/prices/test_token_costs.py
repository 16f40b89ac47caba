"""Which engine makes a token cheapest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adapters.model import Engine
from gateway.costs.prices.token_costs import TokenCosts

from .test_book import price


def engine(gpu_type: str, **fields: str) -> Engine:
    return Engine("e", "http://e", "base", gpu_type, 2, 8, **fields)


@pytest.fixture
def costs() -> TokenCosts:
    costs = TokenCosts(SimpleNamespace(), lambda: 100)  # type: ignore[arg-type]
    costs.load(
        [
            price(0, rate=4_000_000),
            price(0, rate=1_000_000, purchase="spot"),
            price(
                0,
                rate=6_000_000,
                gpu_type="H200",
                speedup_millis=2000,
                speedup_reference="H100",
                speedup_source="x",
            ),
            price(200, rate=1, gpu_type="L4"),
        ]
    )
    return costs


def test_a_dearer_gpu_may_be_the_cheaper_one_for_a_token(costs):
    assert costs.of(engine("H200")) < costs.of(engine("H100"))
    assert costs.of(engine("H100", purchase="spot")) < costs.of(engine("H200"))


@pytest.mark.parametrize("gpu_type", ["A100", "L4"])
def test_no_engine_is_avoided_for_a_price_that_is_missing(costs, gpu_type):
    assert costs.of(engine(gpu_type)) == 0
