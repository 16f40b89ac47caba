import random
from decimal import Decimal

import pytest

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.periods import Period, local_time, month_of, zone
from gateway.costs.reports.report import Question, cost_report
from gateway.units import HOUR
from tests.support.ledger_rows import mark_closed, price
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

HOUR_100 = Period(100 * HOUR, 101 * HOUR)
NOVEMBER, DECEMBER = month_of("2026-11"), month_of("2026-12")
NOV, DEC = NOVEMBER.start // HOUR, DECEMBER.start // HOUR
NOW = 10**17
PARTS = ("retry_waste", "headroom", "startup", "idle")


def report_of(ledger, period=NOVEMBER, now=NOW, **question):
    return cost_report(ledger, Question(period, **question), now=now)


def assert_adds_up(report):
    """Rows, what else the time went into, and corrections are the whole: to the last unit of both."""
    parts = [report["totals"], *(report[name]["totals"] for name in PARTS), report["corrections"]["totals"]]
    whole = report["provisioned"]
    assert sum(p["nano_gpu_hours"] for p in parts) == whole["nano_gpu_hours"]
    assert sum(Decimal(p["cost"]) for p in parts) == Decimal(whole["cost"])
    for name in PARTS:
        found = report[name]
        for figure in ("nano_gpu_hours", "cost"):
            assert sum(Decimal(r[figure]) for r in found["rows"]) == Decimal(found["totals"][figure])


# -- from the records


def test_rejections_are_counted_and_cost_nothing(ledger):
    ledger.insert([record("a", outcome="rejected", engine="", gpu_type="", gpu_count=0, billable=False)])
    report = report_of(ledger, HOUR_100)
    assert report["rejected"] == 1
    assert report["rows"] == report["retry_waste"]["rows"] == report["missing_prices"] == []
    assert (report["provisioned"]["cost"], report["utilization"]) == ("0.00", [])


# -- from roll-ups


def rows_of(*buckets):
    return [row(NOV, bucket=bucket, nano_gpu_hours=10**8 * (i + 1)) for i, bucket in enumerate(buckets)]


def test_each_part_is_shown_and_they_add_up(ledger):
    price(ledger)
    write(ledger, *rows_of("usage", *PARTS))
    report = report_of(ledger)
    assert {n: report[n]["totals"]["cost"] for n in PARTS} == {
        "retry_waste": "0.40", "headroom": "0.60", "startup": "0.80", "idle": "1.00",
    }  # fmt: skip
    assert report["idle"]["rows"] == [
        {"gpu_type": "H100", "gpu_seconds": 1800.0, "gpu_hours": "0.50", "nano_gpu_hours": 500_000_000,
         "cost": "1.00"}
    ]  # fmt: skip
    assert report["provisioned"]["cost"] == "3.00"
    [used] = report["utilization"]
    assert used == {
        "gpu_type": "H100", "provisioned_gpu_hours": "1.50", "busy_gpu_hours": "0.60", "utilization": 0.4,
        "idleness_gpu_hours": "0.90", "idleness_cost": "1.80",
    }  # fmt: skip
    assert_adds_up(report)


def test_without_a_price_there_is_gpu_time_and_the_price_is_named(ledger):
    price(ledger)
    write(ledger, row(NOV), row(NOV, gpu_type="A100", region="eu", purchase="spot"), row(NOV, bucket="idle"))
    report = report_of(ledger, by=("gpu_type",))
    a100, h100 = report["rows"]
    assert (a100["cost"], a100["gpu_seconds"], h100["cost"]) == (None, 3600.0, "2.00")
    assert report["totals"]["cost"] is report["provisioned"]["cost"] is None
    assert report["idle"]["totals"]["cost"] == "2.00"
    for part in (report["totals"], report["provisioned"]):
        assert part["unpriced_gpu_hours"] == "1.00"
    assert (report["totals"]["priced_cost"], report["provisioned"]["priced_cost"]) == ("2.00", "4.00")
    assert "priced_cost" not in h100
    assert report["missing_prices"] == [
        {"gpu_type": "A100", "region": "eu", "purchase": "spot", "gpu_hours": "1.00"}
    ]


def test_the_state_of_several_months_and_what_had_no_price_when_they_were_closed(ledger):
    def state():
        return report_of(ledger, Period(NOVEMBER.start, DECEMBER.end))["state"]

    terms = '{"terms": {"missing_prices": [["H100", "", "on_demand"], ["L4", "", "on_demand"]]}}'
    mark_closed(ledger, "2026-11", document=terms)
    write(ledger, row(NOV, rate_micros=0))
    assert ([one["gpu_type"] for one in report_of(ledger)["missing_prices"]], state()) == (["H100"], "open")
    mark_closed(ledger, "2026-12", state="closing")
    assert state() == "closing"


def test_a_page_holds_little_and_is_the_same(ledger):
    """More rows than a page keeps while it reads them."""
    write(ledger, *(row(NOV, tenant=f"t{i * 7919 % 3001:04}", adapter="") for i in range(3001)))
    names = [f"t{i:04}" for i in range(3001)]
    first = report_of(ledger, by=("tenant",), limit=10)
    assert [r["tenant"] for r in first["rows"]] == names[:10]
    later = report_of(ledger, by=("tenant",), limit=10, after=("t0009",))
    assert [r["tenant"] for r in later["rows"]] == names[10:20]
    assert report_of(ledger, by=("tenant",), limit=10, after=("t2990",))["next"] is None


# -- tenants


def test_a_tenant_s_report_is_the_same_whatever_others_do(ledger):
    price(ledger)
    write(ledger, row(NOV), row(NOV, bucket="retry_waste"))
    alone = report_of(ledger, tenants=("acme",))
    posted = {"calibration": 3, "posted": "2026-11"}
    others = [
        row(hour, bucket=bucket, tenant=tenant, gpu_type=gpu_type, **posted, correction=late)
        for bucket in ("usage", "retry_waste", "rejected", "headroom", "startup", "idle")
        for tenant in (["bolt"] if bucket in {"usage", "retry_waste", "rejected"} else [""])
        for gpu_type in ("H100", "L4")
        for hour, late in ((NOV, False), (NOV - 1, True))
    ]
    write(ledger, *others)
    assert report_of(ledger, tenants=("acme",)) == alone
    assert not {"provisioned", "idle", "headroom", "startup", "utilization", "unit_prices", "shares"} & set(
        alone
    )


# -- allocation


def used(ledger):
    write(
        ledger,
        row(NOV, nano_gpu_hours=600_000_000),
        row(NOV, nano_gpu_hours=100_000_000, adapter="acme/sql"),
        row(NOV, tenant="bolt", adapter="bolt/x", nano_gpu_hours=200_000_000),
        row(NOV, bucket="idle", nano_gpu_hours=100_000_001),
        row(NOV, bucket="idle", gpu_type="L4", nano_gpu_hours=50),
    )


def test_random_months_with_corrections_add_up(ledger):
    """However they are asked for."""
    rng, made = random.Random(11), []
    for gpu_type, rate, start in (
        ("H100", "2.000003", 0),
        ("L4", "0.7", 0),
        ("H100", "3", (DEC + 20) * HOUR),
    ):
        price(ledger, gpu_type, rate, start)
    for late in [True, *[False] * 9] * 30:
        hour, nano = (NOV if late else DEC) + rng.randrange(40), rng.randrange(-(10**9) * late, 10**9)
        names = {"gpu_type": rng.choice(("H100", "L4")), "tenant": rng.choice("abc"), "nano_gpu_hours": nano}
        frozen = {"posted": "2026-12", "correction": late, "rate_micros": 7 if late else None}
        made.append(row(hour, bucket=rng.choice(("usage", *PARTS)), **names, **frozen))
    write(ledger, *made)
    shared = (
        AllocationPolicy("proportional"),
        AllocationPolicy("even"),
        AllocationPolicy("fixed", {"a": 2, "z": 1}),
    )
    for policy in (None, *shared):
        months = [
            report_of(ledger, DECEMBER, by=by, policy=policy)
            for by in (("tenant",), ("day", "purchase", "engine"))
        ]
        assert (months[0]["provisioned"], months[0]["totals"]) == (
            months[1]["provisioned"],
            months[1]["totals"],
        )
        alone = report_of(ledger, DECEMBER, by=("tenant",), policy=policy, tenants=("a",))
        assert alone["rows"] == [shown for shown in months[0]["rows"] if shown["tenant"] == "a"]
        for report in months:
            assert_adds_up(report)
            if policy:
                borne = [report["totals"], report["corrections"]["totals"], report["unallocated"]]
                nano = [part.get("allocated_nano_gpu_hours", part["nano_gpu_hours"]) for part in borne]
                unused = [report[n]["totals"] for n in PARTS[1:]]
                unused += [r for r in report["corrections"]["rows"] if r["bucket"] in PARTS[1:]]
                assert sum(nano) == sum(one["nano_gpu_hours"] for one in unused)
                for name in ("allocated_cost", "allocated_nano_gpu_hours"):
                    assert sum(Decimal(r[name]) for r in report["rows"]) == Decimal(report["totals"][name])


@pytest.mark.parametrize("dimension", ["day", "hour", "engine", "base_model"])
def test_who_used_nothing_bears_its_share_where_the_time_went_unused(ledger, dimension):
    """There was a row with an empty date."""
    price(ledger)
    write(
        ledger,
        row(NOV, tenant="acme"),
        row(NOV, bucket="idle", nano_gpu_hours=300),
        row(NOV + 24, bucket="idle", engine="gpu-b", base_model="other", nano_gpu_hours=101),
    )
    policy = AllocationPolicy("fixed", {"acme": 1, "corgi": 1})
    report = report_of(ledger, policy=policy, by=(dimension, "tenant"))
    where = [r[dimension] for r in report["idle"]["rows"]]
    corgi = {r[dimension]: r["allocated_nano_gpu_hours"] for r in report["rows"] if r["tenant"] == "corgi"}
    assert corgi == dict(zip(where, (150, 50), strict=True))
    assert report["totals"]["allocated_nano_gpu_hours"] == 401
    alone = report_of(ledger, policy=policy, by=(dimension,))
    assert [r[dimension] for r in alone["rows"]] == where


def test_days_and_months_of_a_timezone(ledger):
    """The night of 25 October has 25 hours in Berlin; its first two belong to the day before in UTC."""
    berlin = zone("Europe/Berlin")
    october = month_of("2026-10", berlin)
    price(ledger)
    hours = range(october.start // HOUR - 1, october.end // HOUR + 1)
    write(ledger, *(row(hour, requests=1, nano_gpu_hours=10) for hour in hours))
    report = report_of(ledger, october, by=("day",), local=local_time(october, berlin))
    days = {r["day"]: r["requests"] for r in report["rows"]}
    assert list(days) == [f"2026-10-{day:02}" for day in range(1, 32)]
    assert {day: n for day, n in days.items() if n != 24} == {"2026-10-25": 25}
    assert (report["basis"], report["state"]) == ("as known now", None)
    assert report["local"] == {
        "timezone": "Europe/Berlin",
        "from": "2026-10-01T00:00:00+02:00",
        "to": "2026-11-01T00:00:00+01:00",
    }
    assert report["provisioned"]["nano_gpu_hours"] == 10 * (len(hours) - 2)
    assert_adds_up(report)


def test_a_local_month_that_is_a_month_of_utc_is_still_read_by_its_hours(ledger):
    """What is posted to a month depends on when it was closed, and months are closed in UTC."""
    london = zone("Europe/London")
    january = month_of("2026-01", london)
    first = january.start // HOUR
    later, earlier = ({"posted": month, "correction": True} for month in ("2026-02", "2026-01"))
    write(ledger, row(first), row(first, nano_gpu_hours=5, **later), row(first - 1, **earlier))
    local = report_of(ledger, january, by=("day",), local=local_time(january, london))
    assert [(r["day"], r["nano_gpu_hours"]) for r in local["rows"]] == [("2026-01-01", 10**9 + 5)]
