"""Requirements of two tenants at once."""

from __future__ import annotations

import pytest

from adapters.model import DEDICATED, Engine
from adapters.placement.plan_draft import meets
from adapters.placement.planned_fleet import PlannedVersion
from adapters.placement.requirements import SCORES_PROMPTS, combined, shown
from adapters.placement.scheduling.filters import refusal
from adapters.placement.scheduling.view import Action, Ask
from tests.unit.adapters.placement.scheduling import world


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


ACME = {DEDICATED: "acme"}


@pytest.mark.parametrize(
    ("tenant", "requires", "reason"),
    [
        ("", {}, ""),
        ("", ACME, ""),
        ("acme", ACME, ""),
        ("acme", {**ACME, "region": "eu"}, ""),
        ("acme", {}, "dedicated to acme"),
        ("acme", {"region": "eu"}, "dedicated to acme"),
        ("acme", {DEDICATED: "bolt"}, "dedicated to acme"),
        ("acme", {**ACME, "region": "us"}, "requires region=us"),
        ("", {**ACME, "region": "us"}, "requires region=us"),
    ],
)
def test_an_engine_that_is_set_aside_serves_its_tenant_only(tenant, requires, reason):
    engine = Engine("e1", "http://e1", "base", "H100", 2, 8, region="eu", tenant=tenant)
    view = world.engine("e1", labels=engine.all_labels)
    assert refusal(view, Ask("v", requires=requires), Action.LOAD) == reason
    asked = engine.meets(requires), view.meets(requires), meets(view, PlannedVersion("v", requires=requires))
    assert asked == (not reason,) * 3


def test_whose_an_engine_is_is_no_label_to_name():
    assert shown({**ACME, "region": "eu"}) == "region=eu"
    assert not Engine("e1", "http://e1", "base", "H100", 2, 8, tenant="acme").meets(SCORES_PROMPTS)
