import pytest

from gateway.costs.periods import HOUR, Period, iso
from gateway.costs.prices import add_price
from gateway.costs.report import cost_report
from gateway.metering.ledger import Ledger
from tests.unit.gateway.metering.make import record

HOUR_100 = Period(100 * HOUR, 101 * HOUR)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield made
    made.close()


def price(ledger, gpu_type="H100", rate="2.00", start=0):
    add_price(
        ledger, gpu_type=gpu_type, rate=rate, currency="USD", purchase="on_demand", region="",
        valid_from=start, valid_to=None, now=0,
    )  # fmt: skip


def test_an_empty_ledger(ledger):
    report = cost_report(ledger, HOUR_100)
    assert (report["rows"], report["missing_prices"], report["currency"]) == ([], [], None)
    assert (report["totals"]["requests"], report["totals"]["cost"]) == (0, "0.00")
    assert (report["from"], report["to"]) == (iso(100 * HOUR), iso(101 * HOUR))


def test_rows_by_tenant_adapter_and_gpu_type(ledger):
    price(ledger)
    ledger.insert(
        [
            record("a", ended=100 * HOUR + HOUR // 2, prompt_tokens=10, completion_tokens=5, cached_tokens=4),
            record(
                "b",
                tenant="bolt",
                adapter="bolt/x",
                ended=100 * HOUR + 1,
                prompt_tokens=16,
                completion_tokens=0,
            ),
            record("c", tenant="bolt", adapter="", version="", ended=100 * HOUR + 1, completion_tokens=11),
        ]
    )
    report = cost_report(ledger, HOUR_100)
    assert [(r["tenant"], r["adapter"], r["gpu_type"]) for r in report["rows"]] == [
        ("acme", "acme/support", "H100"),
        ("bolt", "", "H100"),
        ("bolt", "bolt/x", "H100"),
    ]
    acme, base, bolt = report["rows"]
    assert (acme["requests"], acme["prompt_tokens"], acme["cached_tokens"], acme["completion_tokens"]) == (
        1,
        10,
        4,
        5,
    )
    # half an hour, weights 16 : 32 : 16
    assert [r["nano_gpu_hours"] for r in (acme, base, bolt)] == [125_000_000, 250_000_000, 125_000_000]
    assert [r["gpu_seconds"] for r in (acme, base, bolt)] == [450.0, 900.0, 450.0]
    assert [r["cost"] for r in (acme, base, bolt)] == ["0.25", "0.50", "0.25"]
    assert (report["totals"]["cost"], report["currency"], report["weights"]) == (
        "1.00",
        "USD",
        "uncalibrated",
    )


def test_other_groupings_have_the_same_totals(ledger):
    price(ledger)
    ledger.insert(
        [
            record(f"r{i}", tenant=f"t{i % 3}", adapter=f"t{i % 3}/a", version=f"v{i % 2}", engine=f"e{i % 2}",
                   dispatched=100 * HOUR + i * 7919, ended=100 * HOUR + i * 7919 + 123457, completion_tokens=i)
            for i in range(60)
        ]
    )  # fmt: skip
    whole = cost_report(ledger, HOUR_100)["totals"]
    for by in [("tenant",), ("version", "engine"), ("hour",), ("gpu_type", "adapter", "tenant")]:
        report = cost_report(ledger, HOUR_100, by=by)
        assert report["totals"] == whole
        assert all(set(by) <= set(row) for row in report["rows"])
        assert sum(r["nano_gpu_hours"] for r in report["rows"]) == whole["nano_gpu_hours"]


def test_retry_waste_is_a_line_of_its_own(ledger):
    price(ledger)
    ledger.insert(
        [
            record("a", ended=101 * HOUR - 1, completion_tokens=5),
            record("a", 2, billable=False, outcome="failover", ended=101 * HOUR - 1, completion_tokens=5),
        ]
    )
    report = cost_report(ledger, Period(100 * HOUR, 102 * HOUR))
    assert [r["requests"] for r in report["rows"]] == [1]
    assert [r["requests"] for r in report["retry_waste"]["rows"]] == [1]
    both = report["totals"]["nano_gpu_hours"] + report["retry_waste"]["totals"]["nano_gpu_hours"]
    assert both == 999_999_999  # a microsecond short of the hour, rounded down


def test_rejections_are_no_cost(ledger):
    ledger.insert([record("a", outcome="rejected", engine="", gpu_type="", gpu_count=0, billable=False)])
    report = cost_report(ledger, HOUR_100)
    assert report["rows"] == report["retry_waste"]["rows"] == report["missing_prices"] == []


def test_without_a_price_there_is_gpu_time_and_the_price_is_named(ledger):
    price(ledger)
    ledger.insert([record("a"), record("b", engine="gpu-b", gpu_type="A100")])
    report = cost_report(ledger, HOUR_100, by=("gpu_type",))
    a100, h100 = report["rows"]
    assert (a100["cost"], a100["gpu_seconds"]) == (None, pytest.approx(1.0, abs=1e-5))
    assert h100["cost"] is not None
    assert report["totals"]["cost"] is None
    assert report["missing_prices"] == ["A100"]


def test_a_rate_change_splits_the_hour(ledger):
    price(ledger, rate="2.00")
    price(ledger, rate="4.00", start=100 * HOUR + HOUR // 2)
    ledger.insert([record("a", ended=101 * HOUR)])
    report = cost_report(ledger, Period(100 * HOUR, 102 * HOUR))
    assert [(r["cost"], r["gpu_seconds"]) for r in report["rows"]] == [("3.00", 3600.0)]


def test_ranges_that_meet_sum_to_the_whole(ledger):
    price(ledger, rate="3.333333")
    ledger.insert(
        [
            record(
                f"r{i}",
                dispatched=100 * HOUR + i * 99_999_999,
                ended=100 * HOUR + i * 99_999_999 + 777_777_777,
            )
            for i in range(30)
        ]
    )
    cut = 100 * HOUR + 1_234_567_891
    parts = [cost_report(ledger, p)["totals"] for p in (Period(99 * HOUR, cut), Period(cut, 110 * HOUR))]
    whole = cost_report(ledger, Period(99 * HOUR, 110 * HOUR))["totals"]
    for name in ("requests", "prompt_tokens", "nano_gpu_hours"):
        assert sum(p[name] for p in parts) == whole[name]


def test_the_end_is_not_included(ledger):
    ledger.insert([record("a", ended=101 * HOUR), record("b", ended=101 * HOUR - 1)])
    assert cost_report(ledger, HOUR_100)["totals"]["requests"] == 1
    assert cost_report(ledger, Period(101 * HOUR, 102 * HOUR))["totals"]["requests"] == 1


def test_a_tenant_sees_its_rows_with_the_shares_that_all_have(ledger):
    price(ledger)
    ledger.insert(
        [record("a"), record("b", tenant="bolt", engine="gpu-a"), record("c", tenant="bolt", gpu_type="L4")]
    )
    everyone = cost_report(ledger, HOUR_100)
    alone = cost_report(ledger, HOUR_100, tenants=["acme"])
    assert alone["rows"] == [r for r in everyone["rows"] if r["tenant"] == "acme"]
    assert alone["missing_prices"] == []
    assert cost_report(ledger, HOUR_100, tenants=["acme", "bolt"])["rows"] == []
