"""A correction follows the policy and shares of the month that it corrects."""

from __future__ import annotations

import json
from fractions import Fraction

from sqlalchemy import select

from gateway.costs.allocation import NONE, AllocationPolicy
from gateway.costs.closing.checks import GRACE
from gateway.costs.closing.closing import close
from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import Period
from gateway.costs.policies.standing import set_policy
from gateway.costs.policies.terms import allocate_corrections
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.schema import period_tenants
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import DECEMBER, JANUARY, NOVEMBER, OCTOBER, fill, records

NOW = DECEMBER + GRACE


def statements(ledger, of):
    with ledger.read() as connection:
        query = select(period_tenants.c.document).where(period_tenants.c.month == of)
        return {one["tenant"]: one for one in map(json.loads, connection.execute(query).scalars())}


def borne(ledger, *months):
    """Each tenant's allocated cost in some months, exactly."""
    sums: dict[str, Fraction] = {}
    for of in months:
        for tenant, one in statements(ledger, of).items():
            costs = [Fraction(line["cost"]) for line in one["lines"] if line["kind"] == "allocated"]
            sums[tenant] = sums.get(tenant, Fraction(0)) + sum(costs)
    return {tenant: cost for tenant, cost in sums.items() if cost}


def test_a_refund_reaches_who_paid(ledger):
    """October is acme's alone; when its price is halved, November's policy must not decide who is repaid."""
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="key", policy="fixed", shares={"acme": 1})
    paid = borne(ledger, "2026-10")
    assert set(paid) == {"acme"}
    for gpu_type, rate in (("H100", "1.245"), ("L40", "0.35")):
        price(ledger, gpu_type, rate, OCTOBER)
    price(ledger, "L40", "0.7", NOVEMBER)
    price(ledger, "H100", "2.49", NOVEMBER)
    set_policy(ledger, AllocationPolicy("fixed", {"bolt": 1}), by="k", reason="", now=NOW)
    close(ledger, "2026-11", now=NOW, by="key")
    late = [line for line in statements(ledger, "2026-11")["acme"]["lines"] if line["kind"] == "allocated"]
    assert {(line["correction"], line["corrects"]) for line in late} == {(True, "2026-10")}
    assert sum(Fraction(line["cost"]) for line in late) == -paid["acme"] / 2
    own = [line for line in statements(ledger, "2026-11")["bolt"]["lines"] if line["kind"] == "allocated"]
    assert own
    assert not any(line["correction"] for line in own)
    assert all(check.ok for period in verify(ledger) for check in period.checks)


def test_usage_of_a_skipped_month_follows_the_first_month_that_has_it(ledger):
    price(ledger, "H100", "1")
    price(ledger, "L40", "1")
    ledger.insert(records(1, OCTOBER))
    close(ledger, "2026-10", now=JANUARY + GRACE, by="key", policy="even")
    ledger.insert(records(2, DECEMBER))
    roll(ledger, JANUARY + GRACE)
    close(ledger, "2026-12", now=JANUARY + GRACE, by="key", policy="fixed", shares={"acme": 1})
    ledger.insert(records(3, NOVEMBER))
    roll(ledger, JANUARY + GRACE)
    fixed = AllocationPolicy("fixed", {"bolt": 1})
    with ledger.read() as connection:
        book = PriceBook(read_prices(connection))
        found = allocate_corrections(connection, book, "2027-01", fixed)
        assert allocate_corrections(connection, book, "2027-01", NONE) == {}
        unused = sum(
            line.nano_gpu_hours
            for line in read_lines(connection, book, Period(NOVEMBER, DECEMBER), as_posted=False)
            if line.bucket in {"idle", "startup", "headroom"}
        )
    nano = sum(found.get("2026-11", {}).values())
    assert nano == unused
    assert {key[0] for key in found.get("2026-11", {})} <= {"bolt"}


def test_a_report_shows_the_allocation_of_corrections_apart(ledger):
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="key", policy="fixed", shares={"acme": 1})
    price(ledger, "L40", "0.35", OCTOBER)
    price(ledger, "L40", "0.7", NOVEMBER)
    set_policy(ledger, AllocationPolicy("even"), by="k", reason="", now=NOW)
    whole = Period(NOVEMBER, DECEMBER)
    report = cost_report(ledger, Question(whole, by=("tenant",)), now=NOW)
    [late] = [row for row in report["corrections"]["rows"] if row["bucket"] == "allocated"]
    assert (late["tenant"], late["month"], late["cost"]) == ("acme", "2026-10", "0.00")
    assert Fraction(late["allocated_cost"]) < 0
    parts = [report["totals"], report["corrections"]["totals"]]
    allocated = sum(Fraction(part["allocated_cost"]) for part in parts)
    unused = [report[name]["totals"]["cost"] for name in ("headroom", "startup", "idle")]
    unused += [row["cost"] for row in report["corrections"]["rows"] if row["bucket"] in {"idle", "startup"}]
    assert allocated + Fraction(report["unallocated"]["cost"]) == sum(map(Fraction, unused))


def test_a_report_over_months_allocates_each_by_its_own_policy(ledger):
    fill(ledger)
    close(ledger, "2026-10", now=NOW, by="key", policy="fixed", shares={"acme": 1})
    set_policy(ledger, AllocationPolicy("fixed", {"bolt": 1}), by="k", reason="", now=NOW)
    both = cost_report(ledger, Question(Period(OCTOBER, DECEMBER), by=("tenant",)), now=NOW)
    assert both["policy"] == "various"
    alone = [
        cost_report(ledger, Question(period, by=("tenant",)), now=NOW)
        for period in (Period(OCTOBER, NOVEMBER), Period(NOVEMBER, DECEMBER))
    ]
    for name in ("cost", "allocated_cost"):
        sums: dict[str, Fraction] = {}
        for report in alone:
            for row in report["rows"]:
                sums[row["tenant"]] = sums.get(row["tenant"], Fraction(0)) + Fraction(row[name])
        assert {row["tenant"]: Fraction(row[name]) for row in both["rows"]} == sums
    days = Period(OCTOBER + HOUR, NOVEMBER + DAY)
    hours = cost_report(ledger, Question(days, by=("tenant",)), now=NOW)
    assert hours["policy"] == "various"
    assert {row["tenant"] for row in hours["rows"] if row["allocated_nano_gpu_hours"]} == {"acme", "bolt"}
    ages = Period(-(10**16), 10**17)
    assert cost_report(ledger, Question(ages, by=("tenant",)), now=NOW)["policy"] == "various"
