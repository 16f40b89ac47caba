"""Commitments: what engines used of them, what they cost, and that they are never edited."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.commitments.commitment import Commitment, CommitmentError, use
from gateway.costs.commitments.commitment_report import commitment_report
from gateway.costs.commitments.commitment_store import (
    CommitmentNotFoundError,
    add_commitment,
    list_commitments,
    withdraw_commitment,
)
from gateway.costs.periods import Period, iso, month_of
from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import import_bill
from gateway.costs.reconciliation.reconcile import reconcile
from gateway.metering.ledger.schema import engine_hours
from gateway.units import HOUR, NANO
from tests.support.ledger_rows import engine_hour, price, put
from tests.unit.gateway.costs.rolled import row, write

NOVEMBER = month_of("2026-11")
FIRST = NOVEMBER.start // HOUR
NOW = NOVEMBER.end + 5
TEN = Period(0, 10 * HOUR)


def commitment(number=1, gpus=1, first=0, last=10, region="", upfront="0", **changes):
    fields = {
        "gpu_type": "H100", "region": region, "gpus": gpus, "valid_from": int(first * HOUR),
        "valid_to": int(last * HOUR), "rate_micros": 1_800_000, "upfront": upfront, "currency": "USD",
        "description": "", "recorded_at": 0, "recorded_by": "k", **changes,
    }  # fmt: skip
    return Commitment(number, **fields)


def test_hours_are_used_once_and_the_nearest_commitment_first():
    usage = {("H100", "eu"): {0: 2 * NANO, HOUR: NANO}, ("H100", "us"): {0: NANO}, ("L40", ""): {0: NANO}}
    anywhere, eu = use([commitment(1), commitment(2, region="eu")], usage, TEN)
    assert (eu.commitment.id, eu.used) == (2, {("eu", 0): NANO, ("eu", HOUR): NANO})
    assert anywhere.used == {("eu", 0): NANO}, (
        "nothing is left for it in the second hour, nor for us in the first"
    )
    assert (anywhere.committed, anywhere.used_nano, len(anywhere.unused)) == (10 * NANO, NANO, 9)


def test_a_term_that_begins_within_an_hour_pays_for_a_part_of_it():
    [one] = use([commitment(first=0.5, last=1.25, gpus=8)], {("H100", ""): {0: 8 * NANO}}, TEN)
    assert (one.committed, one.used_nano, one.unused) == (6 * NANO, 4 * NANO, {HOUR: 2 * NANO})


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 9), st.integers(0, 8 * NANO)),
)
def test_parts_sum_to_the_whole(terms, hours):
    made = [
        commitment(n, gpus, first / 4, (first + length) / 4) for n, (gpus, first, length) in enumerate(terms)
    ]
    usage = {("H100", ""): {hour * HOUR: nano for hour, nano in hours.items()}}
    uses = use(made, usage, TEN)
    for one in uses:
        assert one.used_nano + sum(one.unused.values()) == one.committed
    for hour, nano in hours.items():
        assert sum(one.used.get(("", hour * HOUR), 0) for one in uses) <= nano


def test_an_upfront_payment_is_amortized_to_the_last_unit():
    """Over three months, in parts that sum to it."""
    start, end = month_of("2026-10").start, month_of("2026-12").end
    one = commitment(first=start / HOUR, last=end / HOUR, upfront="1000.01")
    parts = [
        one.amortized(month_of(name)) for name in ("2026-09", "2026-10", "2026-11", "2026-12", "2027-01")
    ]
    assert sum(parts) == Fraction("1000.01")
    assert (parts[0], parts[-1]) == (0, 0)
    assert parts[2] == Fraction("1000.01") * 30 / 92


@pytest.fixture
def november(ledger):
    """Two GPUs are reserved; one is used for 100 hours. Ten hours run on spot, and ten on demand."""
    for engine, purchase, hours, rate in (
        ("d1", "on_demand", 10, "3.00"), ("s1", "spot", 10, "0.50"), ("r1", "reserved", 100, "1.80"),
    ):  # fmt: skip
        times = range(FIRST, FIRST + hours)
        put(ledger, engine_hours, *(engine_hour(n, engine=engine, purchase=purchase) for n in times))
        write(ledger, *(row(n, engine=engine, purchase=purchase, bucket="idle") for n in times))
        price(ledger, "H100", rate, None, purchase=purchase)
    return ledger


TERMS = {
    "gpu_type": "H100", "region": "", "gpus": 2, "valid_from": NOVEMBER.start, "valid_to": month_of("2026-12").end,
    "rate": "1.80", "upfront": "610", "currency": "USD", "description": "ri-7", "now": 1, "by": "fk1",
    "actor": "key:fk1",
}  # fmt: skip


def test_coverage_utilization_list_against_net_and_spot_savings(november):
    add_commitment(november, **TERMS)
    found = commitment_report(november, "2026-11", now=NOW)
    [one] = found["rows"]
    assert (one["committed_gpu_hours"], one["used_gpu_hours"], one["unused_gpu_hours"]) == (
        "1440.00", "100.00", "1340.00",
    )  # fmt: skip
    assert (one["utilization"], one["hourly_cost"], one["amortized_upfront"]) == (
        "0.069444",
        "2592.00",
        "300.00",
    )
    assert (one["net_cost"], one["unused_cost"]) == ("2892.00", "2691.166666666666666667")
    assert (one["list_cost"], one["savings"]) == ("300.00", "-2592.00")
    assert found["totals"]["net_cost"] == "2892.00"
    [kind] = found["gpu_types"]
    assert (kind["provisioned_gpu_hours"], kind["covered_gpu_hours"], kind["coverage"]) == (
        "120.00", "100.00", "0.833333",
    )  # fmt: skip
    [spot] = found["spot"]
    assert (spot["cost"], spot["list_cost"], spot["savings"]) == ("5.00", "30.00", "25.00")


def test_reserved_capacity_that_no_engine_used_reaches_the_bill(november, tmp_path):
    """It was "billed for hours in which the engine was down"."""
    add_commitment(november, **TERMS)
    time = f"{iso(NOVEMBER.start)},{iso(NOVEMBER.end)}"
    path = tmp_path / "bill.csv"
    path.write_text(
        "start,end,resource,gpu_type,purchase,gpu_hours,cost,currency\n"
        f"{time},,H100,reserved,1440,2592,USD\n{time},,H100,spot,10,5,USD\n{time},,H100,on_demand,10,30,USD\n"
    )
    import_bill(november, str(path), file_name="b", reading=BillFormat(), skip_bad=False, now=1)
    found = reconcile(november, "2026-11", now=NOW)
    assert found["ok"], found["unexplained"]
    [one] = found["bill"]["lines"]
    assert (one["kind"], one["verdict"], one["gpu_hours"], one["cost"]) == (
        "reserved_unused", "matched", "1340.00", "2412.00",
    )  # fmt: skip


def test_the_same_again_changes_nothing_and_a_wrong_one_is_withdrawn(ledger):
    made, new = add_commitment(ledger, **TERMS)
    again, known = add_commitment(ledger, **{**TERMS, "now": 2})
    assert (new, known, again) == (True, False, made)
    assert (made["rate_per_gpu_hour"], made["upfront"]) == ("1.80", "610.00")
    gone = withdraw_commitment(ledger, made["id"], reason="twice", now=3, by="fk2", actor="key:fk2")
    assert (gone["withdrawn_by"], gone["withdrawn_reason"]) == ("fk2", "twice")
    with pytest.raises(CommitmentNotFoundError, match="withdrawn already"):
        withdraw_commitment(ledger, made["id"], reason="twice", now=3, by="fk2")
    with pytest.raises(CommitmentNotFoundError, match="No commitment 99"):
        withdraw_commitment(ledger, 99, reason="twice", now=3, by="fk2")
    assert add_commitment(ledger, **TERMS)[1]
    assert [one["withdrawn_reason"] for one in list_commitments(ledger)] == ["twice", None]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"valid_to": NOVEMBER.start}, "valid_to"),
        ({"gpus": 0}, "gpus"),
        ({"rate": "cheap"}, "rate_per_gpu_hour"),
        ({"upfront": "-1"}, "upfront"),
        ({"upfront": "NaN"}, "upfront"),
    ],
)
def test_what_is_no_commitment(ledger, changes, param):
    with pytest.raises(CommitmentError) as wrong:
        add_commitment(ledger, **{**TERMS, **changes})
    assert wrong.value.param == param


def test_a_withdrawn_one_does_not_count():
    assert use([commitment(withdrawn_at=1)], {}, TEN) == []


def test_a_commitment_uses_the_currency_of_the_price_book(november):
    with pytest.raises(CommitmentError, match="uses USD"):
        add_commitment(november, **{**TERMS, "currency": "EUR"})


def test_prices_that_change_within_an_hour_count_by_their_time(ledger):
    """A commitment and a spot engine in an hour whose prices change after a quarter of it."""
    at = NOVEMBER.start + HOUR // 4
    for purchase, first, then in (("on_demand", "4.00", "8.00"), ("spot", "1.00", "2.00")):
        price(ledger, "H100", first, purchase=purchase)
        price(ledger, "H100", then, at, purchase=purchase)
    add_commitment(
        ledger, gpu_type="H100", region="", gpus=1, valid_from=NOVEMBER.start + HOUR // 2,
        valid_to=NOVEMBER.start + 2 * HOUR, rate="1.00", upfront="0", currency="USD", description="", now=1, by="k",
    )  # fmt: skip
    reserved, spot = engine_hour(FIRST, purchase="reserved"), engine_hour(FIRST, engine="s1", purchase="spot")
    put(ledger, engine_hours, reserved, spot)
    found = commitment_report(ledger, "2026-11", now=NOW)
    [one], [spot] = found["rows"], found["spot"]
    assert (one["committed_gpu_hours"], one["used_gpu_hours"]) == ("1.50", "0.50")
    assert (one["list_cost"], one["net_cost"]) == ("3.50", "1.50")  # half an hour at 7.00 on average
    assert (spot["cost"], spot["list_cost"], spot["savings"]) == ("1.75", "7.00", "5.25")
