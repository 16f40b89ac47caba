"""Requirements of two tenants at once."""

from __future__ import annotations

import pytest

from adapters.model import Engine
from adapters.placement.requirements import combined, shown


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, {}, {}),
        ({"region": "eu"}, {}, {"region": "eu"}),
        ({}, {"region": "eu"}, {"region": "eu"}),
        ({"region": "eu"}, {"region": "eu"}, {"region": "eu"}),
        ({"region": "eu"}, {"pool": "a"}, {"region": "eu", "pool": "a"}),
    ],
)
def test_both_must_be_met(one, other, both):
    assert combined(one, other) == both


@pytest.mark.parametrize("region", ["eu", "us", ""])
def test_a_contradiction_is_met_by_no_engine_and_names_both(region):
    engine = Engine("e1", "http://e1", "base", "H100", 2, 8, region=region)
    both = combined({"region": "eu"}, {"region": "us"})
    assert not engine.meets(both)
    assert "eu" in shown(both)
    assert "us" in shown(both)
