import random
from decimal import Decimal

import orjson
import pytest
from sqlalchemy import func, select

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.periods import Period, iso, local_time, month_of, zone
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import Rolled
from gateway.metering.ledger.schema import calibrations, rollups
from gateway.units import HOUR
from tests.support.ledger_rows import calibration, mark_closed, price, put
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
    whole = report["whole"]
    assert sum(p["nano_gpu_hours"] for p in parts) == whole["nano_gpu_hours"]
    assert sum(Decimal(p["cost"]) for p in parts) == Decimal(whole["cost"])
    for name in PARTS:
        found = report[name]
        for figure in ("nano_gpu_hours", "cost"):
            assert sum(Decimal(r[figure]) for r in found["rows"]) == Decimal(found["totals"][figure])


def test_an_empty_ledger(ledger):
    report = report_of(ledger, HOUR_100)
    assert (report["rows"], report["missing_prices"], report["currency"]) == ([], [], None)
    assert (report["totals"]["requests"], report["totals"]["cost"]) == (0, "0.00")
    assert (report["from"], report["to"]) == (iso(100 * HOUR), iso(101 * HOUR))
    assert (report["whole"]["cost"], report["utilization"], report["unit_prices"]) == ("0.00", [], [])
    assert report["complete"] is True


# -- from the records


def test_rows_by_tenant_adapter_and_gpu_type(ledger):
    price(ledger)
    half = 100 * HOUR + HOUR // 2
    ledger.insert(
        [
            record("a", ended=half, prompt_tokens=10, completion_tokens=5, cached_tokens=4),
            record("b", tenant="bolt", adapter="bolt/x", ended=half, prompt_tokens=16, completion_tokens=0),
            record("c", tenant="bolt", adapter="", version="", ended=half, completion_tokens=11),
        ]
    )
    report = report_of(ledger, HOUR_100)
    assert [(r["tenant"], r["adapter"], r["gpu_type"]) for r in report["rows"]] == [
        ("acme", "acme/support", "H100"),
        ("bolt", "", "H100"),
        ("bolt", "bolt/x", "H100"),
    ]
    acme, base, bolt = report["rows"]
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    assert [acme[name] for name in counts] == [1, 10, 4, 5]
    # half an hour, weights 16 : 32 : 16
    assert [r["nano_gpu_hours"] for r in (acme, base, bolt)] == [125_000_000, 250_000_000, 125_000_000]
    assert [r["gpu_seconds"] for r in (acme, base, bolt)] == [450.0, 900.0, 450.0]
    assert [r["cost"] for r in (acme, base, bolt)] == ["0.25", "0.50", "0.25"]
    assert (report["totals"]["cost"], report["currency"]) == ("1.00", "USD")
    assert (report["weights"], report["calibrations"]) == ("uncalibrated", [])
    assert_adds_up(report)


def test_retry_waste_is_a_line_of_its_own(ledger):
    price(ledger)
    ledger.insert(
        [
            record("a", ended=101 * HOUR - 1, completion_tokens=5),
            record("a", 2, billable=False, outcome="failover", ended=101 * HOUR - 1, completion_tokens=5),
        ]
    )
    report = report_of(ledger, HOUR_100)
    assert [r["requests"] for r in report["rows"]] == [1]
    assert [r["requests"] for r in report["retry_waste"]["rows"]] == [1]
    assert report["whole"]["nano_gpu_hours"] == 999_999_999  # a microsecond short of the hour, rounded down
    assert_adds_up(report)


def test_rejections_are_counted_and_cost_nothing(ledger):
    ledger.insert([record("a", outcome="rejected", engine="", gpu_type="", gpu_count=0, billable=False)])
    report = report_of(ledger, HOUR_100)
    assert report["rejected"] == 1
    assert report["rows"] == report["retry_waste"]["rows"] == report["missing_prices"] == []
    assert (report["whole"]["cost"], report["utilization"]) == ("0.00", [])


def test_a_rate_that_changes_within_an_hour_already_rolled_up(ledger):
    price(ledger, rate="2.00")
    ledger.insert([record("a", ended=101 * HOUR)])
    assert report_of(ledger, HOUR_100)["totals"]["cost"] == "2.00"
    price(ledger, rate="4.00", valid_from=100 * HOUR + HOUR // 2)
    assert report_of(ledger, HOUR_100)["totals"]["cost"] == "3.00"


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
    assert report["whole"]["cost"] == "3.00"
    [used] = report["utilization"]
    assert used == {
        "gpu_type": "H100", "provisioned_gpu_hours": "1.50", "busy_gpu_hours": "0.60", "utilization": 0.4,
        "idleness_gpu_hours": "0.90", "idleness_cost": "1.80",
    }  # fmt: skip
    assert_adds_up(report)


def test_what_nobody_used_has_the_dimensions_that_it_can_have(ledger):
    write(ledger, row(NOV, bucket="idle"), row(NOV, bucket="idle", engine="gpu-b"))
    by = report_of(ledger, by=("tenant", "engine", "day"))["idle"]["rows"]
    assert [{n: r[n] for n in ("engine", "day", "gpu_type")} for r in by] == [
        {"engine": engine, "day": "2026-11-01", "gpu_type": "H100"} for engine in ("gpu-a", "gpu-b")
    ]


def test_without_a_price_there_is_gpu_time_and_the_price_is_named(ledger):
    price(ledger)
    write(ledger, row(NOV), row(NOV, gpu_type="A100", region="eu", purchase="spot"), row(NOV, bucket="idle"))
    report = report_of(ledger, by=("gpu_type",))
    a100, h100 = report["rows"]
    assert (a100["cost"], a100["gpu_seconds"], h100["cost"]) == (None, 3600.0, "2.00")
    assert report["totals"]["cost"] is report["whole"]["cost"] is None
    assert report["idle"]["totals"]["cost"] == "2.00"
    for part in (report["totals"], report["whole"]):
        assert part["unpriced_gpu_hours"] == "1.00"
    assert (report["totals"]["priced_cost"], report["whole"]["priced_cost"]) == ("2.00", "4.00")
    assert "priced_cost" not in h100
    assert report["missing_prices"] == [
        {"gpu_type": "A100", "region": "eu", "purchase": "spot", "gpu_hours": "1.00"}
    ]


def test_a_month_closed_without_a_price_says_so(ledger):
    terms = {"terms": {"missing_prices": [["H100", "", "on_demand"], ["L4", "", "on_demand"]]}}
    mark_closed(ledger, "2026-11", document=orjson.dumps(terms).decode())
    write(ledger, row(NOV, rate_micros=0))
    report = report_of(ledger)
    [missing] = report["missing_prices"]
    assert {"gpu_type": "H100", "region": "", "purchase": "on_demand"}.items() <= missing.items()


def test_corrections_are_told_apart_and_net_to_the_difference(ledger):
    price(ledger)
    mark_closed(ledger, "2026-11")
    late = {"posted": "2026-12", "correction": True, "rate_micros": 2_000_000}
    write(
        ledger,
        row(NOV, rate_micros=2_000_000),
        row(NOV, **late, requests=-1, prompt_tokens=-10, completion_tokens=-5, nano_gpu_hours=-(10**9)),
        row(NOV, **late, requests=1, prompt_tokens=10, completion_tokens=9, nano_gpu_hours=10**9 - 300),
        row(NOV, **late, bucket="idle", nano_gpu_hours=300),
        row(NOV, **late, tenant="bolt", requests=0, prompt_tokens=0, completion_tokens=0, nano_gpu_hours=7),
        row(NOV, **late, tenant="bolt", requests=0, prompt_tokens=0, completion_tokens=0, nano_gpu_hours=-7),
        row(DEC, nano_gpu_hours=5),
    )
    december = report_of(ledger, DECEMBER)
    assert [r["nano_gpu_hours"] for r in december["rows"]] == [5]
    idle, usage = december["corrections"]["rows"]
    assert (idle["month"], idle["bucket"], idle["nano_gpu_hours"]) == ("2026-11", "idle", 300)
    assert (usage["month"], usage["bucket"], usage["tenant"]) == ("2026-11", "usage", "acme")
    assert (usage["requests"], usage["completion_tokens"], usage["nano_gpu_hours"]) == (0, 4, -300)
    assert_adds_up(december)
    november = report_of(ledger)
    assert (november["state"], november["basis"]) == ("closed", "posted")
    assert (november["totals"]["completion_tokens"], november["corrections"]["rows"]) == (5, [])
    now = report_of(ledger, Period(NOVEMBER.start, NOVEMBER.start + HOUR))
    assert (now["state"], now["basis"]) == (None, "as known now")
    assert (now["totals"]["completion_tokens"], now["idle"]["totals"]["nano_gpu_hours"]) == (9, 300)
    assert now["corrections"]["rows"] == []
    assert_adds_up(now)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ([], "open"),
        (["closed"], "open"),
        (["closed", "closing"], "closing"),
        (["closed", "closed"], "closed"),
    ],
)
def test_the_state_of_several_months(ledger, states, state):
    for name, given in zip(("2026-11", "2026-12"), states, strict=False):
        mark_closed(ledger, name, state=given)
    assert report_of(ledger, Period(NOVEMBER.start, DECEMBER.end))["state"] == state


def test_what_waits_makes_a_report_incomplete(ledger, monkeypatch):
    monkeypatch.setattr("gateway.costs.reports.report.roll", lambda *_, **__: Rolled(1, 1))
    assert report_of(ledger)["complete"] is False


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


def test_a_tenant_sees_its_rows_with_the_shares_that_all_have(ledger):
    price(ledger)
    ledger.insert(
        [record("a"), record("b", tenant="bolt", engine="gpu-a"), record("c", tenant="bolt", gpu_type="L4")]
    )
    everyone = report_of(ledger, HOUR_100)
    alone = report_of(ledger, HOUR_100, tenants=("acme",))
    assert alone["rows"] == [r for r in everyone["rows"] if r["tenant"] == "acme"]
    assert alone["missing_prices"] == []
    nobody = report_of(ledger, HOUR_100, tenants=("acme", "bolt"))
    assert nobody["rows"] == []


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
    assert not {"whole", "idle", "headroom", "startup", "utilization", "unit_prices", "shares"} & set(alone)


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


@pytest.mark.parametrize(
    ("policy", "allocated", "left"),
    [
        (AllocationPolicy("proportional"), [11_111_111, 66_666_668, 22_222_222], 50),
        (AllocationPolicy("even"), [7_142_857, 42_857_144, 50_000_000], 50),
        (AllocationPolicy("fixed", {"acme": 1, "bolt": 3}), [3_571_429, 21_428_571, 75_000_001 + 37], 0),
    ],
)
def test_what_nobody_used_is_allocated_in_columns_of_its_own(ledger, policy, allocated, left):
    price(ledger)
    price(ledger, "L4", "1")
    used(ledger)
    plain, report = report_of(ledger), report_of(ledger, policy=policy)
    if policy.name != "fixed":
        assert [r["allocated_nano_gpu_hours"] for r in report["rows"]] == allocated
    assert report["unallocated"]["nano_gpu_hours"] == left
    nano = sum(r["allocated_nano_gpu_hours"] for r in report["rows"])
    assert nano == report["totals"]["allocated_nano_gpu_hours"] == 100_000_051 - left
    cost = sum(Decimal(r["allocated_cost"]) for r in report["rows"])
    assert cost == Decimal(report["totals"]["allocated_cost"])
    assert cost + Decimal(report["unallocated"]["cost"]) == Decimal(report["idle"]["totals"]["cost"])
    for name in ("totals", "idle", "whole"):  # nothing is merged
        shown, before = report[name], plain[name]
        assert {key: shown[key] for key in before} == before
    tenants = {r["tenant"] for r in report["rows"]}
    assert tenants == {"acme", "bolt"}


def test_who_bears_by_agreement_without_use_has_a_row(ledger):
    price(ledger)
    used(ledger)
    report = report_of(ledger, policy=AllocationPolicy("fixed", {"corgi": 1}), by=("tenant", "gpu_type"))
    corgi = [r for r in report["rows"] if r["tenant"] == "corgi"]
    assert [(r["gpu_type"], r["requests"], r["allocated_nano_gpu_hours"]) for r in corgi] == [
        ("H100", 0, 100_000_001),
        ("L4", 0, 50),
    ]


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
    assert report["whole"]["nano_gpu_hours"] == 10 * (len(hours) - 2)
    assert_adds_up(report)


def test_a_local_month_that_is_a_month_of_utc_is_still_read_by_its_hours(ledger):
    """What is posted to a month depends on when it was closed, and months are closed in UTC."""
    london = zone("Europe/London")
    january = month_of("2026-01", london)
    assert january == month_of("2026-01")
    price(ledger)
    write(
        ledger,
        row(january.start // HOUR, nano_gpu_hours=10),
        row(january.start // HOUR, nano_gpu_hours=5, posted="2026-02", correction=True),
        row(january.start // HOUR - 1, nano_gpu_hours=100, posted="2026-01", correction=True),
    )
    local = report_of(ledger, january, by=("day",), local=local_time(january, london))
    assert [(r["day"], r["nano_gpu_hours"]) for r in local["rows"]] == [("2026-01-01", 15)]
    assert_adds_up(local)


def test_tenants_bear_the_same_however_a_report_is_grouped(ledger):
    price(ledger)
    used(ledger)
    policy = AllocationPolicy("proportional")

    def borne(**question):
        sums = {}
        for r in report_of(ledger, policy=policy, **question)["rows"]:
            sums[r["tenant"]] = sums.get(r["tenant"], 0) + r["allocated_nano_gpu_hours"]
        return sums

    whole = borne()
    assert borne(by=("tenant",)) == borne(by=("hour", "adapter", "tenant", "version")) == whole
    assert borne(tenants=("acme",)) == {"acme": whole["acme"]}


def test_a_closed_month_has_the_policy_it_was_closed_with(ledger):
    price(ledger)
    used(ledger)
    mark_closed(ledger, "2026-11", policy="fixed", policy_shares='{"acme": 1}')
    report = report_of(ledger)
    assert (report["policy"], report["shares"]) == ("fixed", {"acme": 1})
    assert report["totals"]["allocated_nano_gpu_hours"] == 100_000_051
    assert "shares" not in report_of(ledger, tenants=("acme",))
    assert report_of(ledger, policy=AllocationPolicy("none"))["policy"] == "none"


# -- weights and unit prices


def test_calibrations_are_named_and_unit_prices_come_three_ways(ledger):
    price(ledger, rate="3.60")
    put(ledger, calibrations, calibration(id=5, prefill_ps=10**6, cached_ps=10**5, decode_ps=10**7))
    weights = {"calibration": 5, "weight_input": 10**9, "weight_cached": 0, "weight_output": 10**9}
    counts = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000}
    write(
        ledger,
        row(NOV, **weights, **counts, nano_gpu_hours=500_000_000),
        row(NOV, bucket="headroom", calibration=5, nano_gpu_hours=300_000_000),
        row(NOV, bucket="idle", calibration=5, nano_gpu_hours=200_000_000),
    )
    report = report_of(ledger)
    assert report["weights"] == "calibrated"
    [named] = report["calibrations"]
    assert (named["id"], named["gpu_type"], named["valid_from"]) == (5, "H100", iso(0))
    [prices] = report["unit_prices"]
    assert prices["saturated"] == {"input": "0.001", "cached": "0.0001", "output": "0.01"}
    # B = 0.8 h = 2.88 USD, half of it for a million of input, half for 100,000 of output
    assert prices["busy"] == {"input": "1.44", "cached": None, "output": "14.40"}
    assert prices["loaded"] == {"input": "1.80", "cached": None, "output": "18.00"}
    write(ledger, row(NOV))
    assert report_of(ledger)["weights"] == "partly calibrated"


def test_random_ledgers_add_up(ledger):
    """Whatever is in them, and however it is asked for; the whole is what the database sums."""
    rng = random.Random(11)
    for gpu_type, region, purchase in (("H100", "", "on_demand"), ("H100", "eu", "spot"), ("L4", "", "spot")):
        start = 0
        for _ in range(3):
            rate = f"{rng.randrange(10**7)}e-6"
            price(ledger, gpu_type, rate, start, region=region, purchase=purchase)
            start = (NOV + rng.randrange(1 + start // HOUR % 2, 40)) * HOUR + start
    pools = [("H100", "", "on_demand"), ("H100", "eu", "spot"), ("L4", "", "on_demand")]
    made = []
    for _ in range(400):
        gpu_type, region, purchase = rng.choice(pools)
        late = rng.random() < 0.1
        hour = (NOV if late else DEC) + rng.randrange(40)
        made.append(
            row(
                hour, posted="2026-12", correction=late, gpu_type=gpu_type, region=region, purchase=purchase,
                bucket=rng.choice(("usage", *PARTS)), tenant=rng.choice("abc"),
                nano_gpu_hours=rng.randrange(-10**9 if late else 0, 10**9),
                rate_micros=rng.randrange(10**7) if late else None,
            )
        )  # fmt: skip
    write(ledger, *made)
    with ledger.read() as connection:
        nano = connection.execute(select(func.sum(rollups.c.nano_gpu_hours))).scalar_one()
    for by in [("tenant",), ("tenant", "adapter", "gpu_type"), ("day", "purchase", "base_model", "engine")]:
        for policy in (
            None,
            AllocationPolicy("proportional"),
            AllocationPolicy("even"),
            AllocationPolicy("fixed", {"a": 2, "z": 1}),
        ):
            report = report_of(ledger, DECEMBER, by=by, policy=policy)
            assert_adds_up(report)
            assert report["whole"]["nano_gpu_hours"] == nano
            rows = sum(r["nano_gpu_hours"] for r in report["rows"])
            assert rows == report["totals"]["nano_gpu_hours"]
            if policy:
                unused = [report[n]["totals"]["nano_gpu_hours"] for n in PARTS[1:]]
                unused += [
                    r["nano_gpu_hours"] for r in report["corrections"]["rows"] if r["bucket"] in PARTS[1:]
                ]
                borne = report["totals"]["allocated_nano_gpu_hours"]
                borne += report["corrections"]["totals"]["allocated_nano_gpu_hours"]
                assert borne + report["unallocated"]["nano_gpu_hours"] == sum(unused)
