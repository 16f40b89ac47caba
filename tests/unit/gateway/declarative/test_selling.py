"""Rate cards and assignments in a file: what a plan says of them, and that an export is a file that changes
nothing."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.registry.catalog import Catalog
from gateway.costs.periods import instant
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.operations import assignment_of, card_of
from gateway.costs.selling.schemas import NewAssignment, NewRateCard
from gateway.declarative.commands import fleet_file
from gateway.declarative.operations.current import Snapshot, export, read
from gateway.declarative.operations.document import parse
from gateway.declarative.operations.plan import plan
from gateway.declarative.operations.selling import Selling
from gateway.tenants.directory import Directory, Tenant

NOW = instant("t", "2026-10-15")
TERMS = {"name": "standard", "input_per_million": "9", "output_per_million": "24"}


def there(cards: list[dict[str, Any]] = (), assigned: list[dict[str, Any]] = (), opened: str = "1970-01"):
    made = RateCards(
        [card_of(NewRateCard(**TERMS | one), NOW) for one in cards],
        [assignment_of(NewAssignment(**one), NOW) for one in assigned],
    )
    directory = Directory()
    directory.tenants = {n: Tenant(n, base_access=True, created=0) for n in ("acme", "bolt")}
    return read(Snapshot.take(Catalog(), directory), (), Selling(made, opened))


def planned(current, **wanted: Any):
    return plan(current, parse({"florin": 1} | wanted), prune=True, clock=NOW)


def said(made) -> list[str]:
    return [f"{a.verb} {a.kind} {a.id}{': ' + a.reason if a.reason else ''}" for a in made.actions]


def test_a_card_comes_before_its_assignment():
    made = planned(
        there(),
        rate_card_assignments=[{"tenant": "acme", "card": "standard"}, {"tenant": None, "card": "standard"}],
        rate_cards=[TERMS],
    )
    assert said(made) == [
        "create rate_card standard from now",
        "create rate_card_assignment of acme from now",
        "create rate_card_assignment of every other tenant from now",
    ]
    assert {("tenant", "acme")} == made.actions[1].needs


def test_what_stands_already_is_unchanged():
    current = there(
        [{"valid_from": "2026-09"}, {"valid_from": "2026-11", "output_per_million": "20"}],
        [{"tenant": "acme", "card": "standard", "valid_from": "2026-09"}],
        opened="2026-10",
    )
    made = planned(
        current,
        rate_cards=[TERMS | {"valid_from": "2026-09", "input_per_million": "9.0"}, TERMS | {"output_per_million": "20"}],
        rate_card_assignments=[
            {"tenant": "acme", "card": "standard"}, {"tenant": "acme", "card": "standard", "valid_from": "2026-09"},
        ],
    )  # fmt: skip  # one entry a line says no more
    assert said(made) == []
    assert made.unchanged == 4


def test_other_terms_begin_next_month_or_need_a_reason():
    current = there([{"valid_from": "2026-10"}])
    other = TERMS | {"output_per_million": "25"}
    assert said(planned(current, rate_cards=[other])) == ["create rate_card standard from now"]
    [refused] = said(planned(current, rate_cards=[other | {"valid_from": "2026-10"}]))
    assert refused.startswith(
        "refuse rate_card standard from 2026-10: Rate card standard already has other terms"
    )
    changed = planned(current, rate_cards=[other | {"valid_from": "2026-10", "reason": "typed 24"}])
    assert said(changed) == ["change rate_card standard from 2026-10"]
    [field, why] = changed.actions[0].fields
    assert (field.field, field.old, field.new) == ("output_per_million", "24.00", "25.00")
    assert (why.field, why.old, why.new) == ("reason", None, "typed 24")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"rate_cards": [TERMS | {"valid_from": "2026-09", "output_per_million": "1"}]}, "is closed and keeps its prices"),
        ({"rate_cards": [TERMS | {"name": "Bad Name"}]}, "is not a name for a rate card"),
        ({"rate_cards": [TERMS | {"input_per_million": "cheap"}]}, "is not valid"),
        ({"rate_cards": [TERMS | {"valid_from": "2026-10-15"}]}, "is not a month like 2026-11"),
        ({"rate_cards": [TERMS | {"currency": "EUR"}]}, "prices are in USD"),
        ({"rate_card_assignments": [{"tenant": "acme", "card": "gold"}]}, "There is no rate card 'gold'"),
        ({"rate_card_assignments": [{"tenant": "acme", "card": "standard", "valid_from": "2026-08"}]}, "is valid from"),
        ({"rate_card_assignments": [{"tenant": "gone", "card": "standard"}]}, "There is no tenant 'gone'"),
    ],
)  # fmt: skip  # one case a line says no more
def test_what_cannot_be_is_refused_with_its_reason(wanted, why):
    current = there([{"valid_from": "2026-09"}], opened="2026-10")
    [refused] = said(planned(current, **wanted))
    assert refused.startswith("refuse")
    assert why in refused


def test_an_export_is_a_file_that_changes_nothing_and_restores_an_empty_installation():
    cards = [
        {"valid_from": "2026-09"},
        {"valid_from": "2026-10", "free_input_tokens": 7, "monthly_minimum": "10"},
        {"valid_from": "2026-10", "cached_per_million": "1.5", "batch_percent": 50, "reason": "typed twice"},
        {
            "name": "small",
            "valid_from": "2026-10",
            "residency_per_adapter_hour": "0.0125",
            "per_request": "0.002",
            "discount_percent": 5,
            "discount_until": "2027-03",
            "tiers": [{"kind": "input", "above": 1000, "price": "8"}],
            "tier_mode": "volume",
            "lines": [
                TERMS | {"name": "l40s", "gpu_type": "L40S"},
                TERMS
                | {
                    "name": "vip",
                    "adapter": "acme/x",
                    "residency_per_adapter_hour": "1",
                    "reasoning_per_million": "0",
                    "free_requests": 9,
                },
            ],
        },
    ]
    assigned = [
        {"tenant": None, "card": "standard", "valid_from": "2026-09"},
        {"tenant": "acme", "card": "small", "valid_from": "2026-10"},
        {"tenant": "acme", "card": None, "valid_from": "2026-11"},
        {"tenant": "gone", "card": "small", "valid_from": "2026-10"},
    ]
    current = there(cards, assigned)
    text = fleet_file.write(export(current))
    loaded = fleet_file.load(text)
    sections = {n: loaded[n] for n in ("tenants", "rate_cards", "rate_card_assignments")}
    assert said(planned(current, **sections)) == []
    assert "gone" not in text
    assert "batch_percent: 100" not in text
    assert "free_output_tokens" not in text
    assert text.count("monthly_minimum") == 0, "the version with one was replaced"
    assert text.count("residency_per_adapter_hour") == 2
    assert text.count("tier_mode") == text.count("free_requests") == 1
    assert len(sections["rate_cards"]) == 3
    restored = planned(read(Snapshot.take(Catalog(), Directory()), ()), **sections)
    assert not [action for action in restored.actions if action.verb == "refuse"]
    goals = [action.goal for action in restored.actions]
    again = RateCards(
        [card_of(goal, NOW) for goal in goals if isinstance(goal, NewRateCard)],
        [assignment_of(goal, NOW) for goal in goals if isinstance(goal, NewAssignment)],
    )
    kept = current.selling.cards
    for tenant in ("acme", "bolt"):
        for month in ("2026-08", "2026-09", "2026-10", "2026-11"):
            mine, other = again.card(tenant, month), kept.card(tenant, month)
            assert (mine and mine.terms) == (other and other.terms)


def test_nothing_of_a_card_is_pruned():
    current = there([{"valid_from": "2026-10"}], [{"tenant": "acme", "card": "standard"}])
    assert said(planned(current, rate_cards=[], rate_card_assignments=[])) == []


def test_a_price_may_be_written_as_a_number():
    text = """
florin: 1
prices:
  - {gpu_type: H200, rate_per_gpu_hour: 2.50}
rate_cards:
  - name: standard
    input_per_million: 9
    output_per_million: 24.5
    valid_from: 2026-10
    lines: [{name: large, base_model: llama-70b, input_per_million: 18.5, output_per_million: 50}]
rate_card_assignments:
  - {tenant: acme, card: standard, valid_from: 2026-10}
  - {tenant: null, card: standard, valid_from: 2026-11}
"""
    made = plan(there(), parse(fleet_file.load(text)), clock=NOW)
    assert [action.verb for action in made.actions] == ["create"] * 4
    assert made.actions[0].goal.rate_per_gpu_hour == "2.50"
    assert made.actions[1].goal.input_per_million == "9.00"
    assert made.actions[1].goal.lines[0].input_per_million == "18.50"
    with pytest.raises(Exception, match="input_per_million"):
        parse({"florin": 1, "rate_cards": [TERMS | {"input_per_million": True}]})
