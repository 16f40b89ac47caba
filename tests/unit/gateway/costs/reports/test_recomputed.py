"""Reports by two dimensions of requests at once: to the unit, bounded, and only where the records are."""

from collections import defaultdict
from fractions import Fraction
from itertools import combinations

import pytest
from sqlalchemy import select

from gateway.costs.periods import Period, local_time, zone
from gateway.costs.reports import recomputed
from gateway.costs.reports.recomputed import RecomputationError
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.parts import DIMENSIONS, MOST_NAMES
from gateway.costs.rollups.rollup import roll
from gateway.costs.rollups.set_aside import PLACE, put_set_aside
from gateway.dataplane.labels import OTHER
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.schema import rollups
from gateway.units import HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import OCTOBER, span
from tests.unit.gateway.costs.rollups.test_parts import LATE, labelled
from tests.unit.gateway.metering.make import record

HOURS = Period(OCTOBER, OCTOBER + 6 * HOUR)
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "nano_gpu_hours")


def fill_ledger(ledger):
    price(ledger, "H100", "2.49")
    price(ledger, "L40", "0.7")
    price(ledger, "H100", "2.191919", OCTOBER + 2 * HOUR + 77_777_777)
    ledger.insert(labelled(3, OCTOBER))
    span(ledger, OCTOBER)
    roll(ledger, LATE)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def report(ledger, *by, **changes):
    return cost_report(ledger, Question(HOURS, by, **changes), now=LATE)


def summed(found, names):
    sums = defaultdict(lambda: [0] * (len(COUNTS) + 1))
    for part in ("rows", "retry_waste"):
        for row in found[part] if part == "rows" else found[part]["rows"]:
            held = sums[part, *(row[name] for name in names)]
            for place, name in enumerate(COUNTS):
                held[place] += row[name]
            held[-1] += Fraction(row["cost"])
    return sums


@pytest.mark.parametrize("pair", list(combinations(DIMENSIONS, 2)))
def test_the_sums_over_one_are_the_rows_of_the_other(ledger, pair):
    both = report(ledger, "tenant", *pair)
    for one in pair:
        assert summed(both, ("tenant", one)) == summed(report(ledger, "tenant", one), ("tenant", one))
    other = report(ledger, "tenant")
    assert both["provisioned"] == other["provisioned"]
    assert both["idle"]["totals"] == other["idle"]["totals"]
    assert both["rejected"] == other["rejected"]
    assert both["basis"] == "as known now"


def test_each_dimension_stays_bounded(ledger):
    many = [
        record(f"many-{n}", engine="a", gpu_type="H100", gpu_count=2, dispatched=OCTOBER + n,
               ended=OCTOBER + n + 9, end_user=f"u{n}", tag=f"t{n}")
        for n in range(MOST_NAMES + 20)
    ]  # fmt: skip
    ledger.insert(many)
    with ledger.write() as connection:
        mark_dirty(connection, [(OCTOBER, "a", "H100", 2)])
    found = report(ledger, "tenant", "end_user", "tag", "hour", "engine")
    at = {"hour": "2026-10-01T00:00:00Z", "tenant": "acme", "engine": "a"}
    first = [row for row in found["rows"] if at.items() <= row.items()]
    for name in ("end_user", "tag"):
        assert len({row[name] for row in first} - {"", OTHER}) <= MOST_NAMES
        assert OTHER in {row[name] for row in first}


def test_without_the_records_it_says_so(ledger, monkeypatch):
    monkeypatch.setattr(recomputed, "pruned_before", lambda _: OCTOBER + HOUR)
    with pytest.raises(RecomputationError, match="before 2026-10-01T01:00:00Z were removed"):
        report(ledger, "key", "tag")


KOLKATA = zone("Asia/Kolkata")
DAYS = Period(OCTOBER - 11 * HOUR // 2, OCTOBER + 3 * 24 * HOUR - 11 * HOUR // 2)
"""The first three days of October in India."""


def local(ledger, *by, **changes):
    question = Question(DAYS, by, local=local_time(DAYS, KOLKATA), **changes)
    return cost_report(ledger, question, now=LATE)


@pytest.fixture
def indian(ledger):
    """The traffic is around the midnight of 3 October in India."""
    around = OCTOBER + 2 * 24 * HOUR - 8 * HOUR
    ledger.insert(labelled(5, around))
    span(ledger, around)
    return ledger


@pytest.mark.parametrize("by", [(name,) for name in DIMENSIONS] + list(combinations(DIMENSIONS, 2))[:3])
def test_names_add_up_in_local_days_too(indian, by):
    named, days = local(indian, "day", "tenant", *by), local(indian, "day", "tenant")
    assert summed(named, ("day", "tenant")) == summed(days, ("day", "tenant"))
    assert {row["day"] for row in days["rows"]} >= {"2026-10-02", "2026-10-03"}
    whole = cost_report(indian, Question(Period(OCTOBER - 6 * HOUR, OCTOBER + 3 * 24 * HOUR)), now=LATE)
    assert named["provisioned"] == days["provisioned"] == whole["provisioned"]


def test_too_many_records_are_refused_with_what_to_do(ledger, monkeypatch):
    monkeypatch.setattr(recomputed, "MOST_RECORDS", 3)
    with pytest.raises(RecomputationError, match="ask for a later or shorter time") as refused:
        report(ledger, "key", "tag")
    assert refused.value.param == "by"


def test_an_hour_that_is_set_aside_does_not_prevent_a_local_report(indian):
    cut = OCTOBER + 2 * 24 * HOUR - 6 * HOUR  # India's midnight is in the middle of it
    whole = local(indian, "day")
    with indian.write() as connection:
        place = connection.execute(
            select(*(rollups.c[name] for name in PLACE)).where(rollups.c.hour == cut, rollups.c.engine != "")
        ).first()
        put_set_aside(connection, tuple(place), "another tenant's record is implausible", LATE)
    found = local(indian, "day", tenants=("acme",))
    assert [one["hour"] for one in found["set_aside"]] == ["2026-10-02T18:00:00Z"]
    assert "implausible" not in str(found)
    assert Fraction(local(indian, "day")["provisioned"]["gpu_hours"]) < Fraction(
        whole["provisioned"]["gpu_hours"]
    )
