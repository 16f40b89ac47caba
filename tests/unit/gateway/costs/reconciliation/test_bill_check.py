"""The bill against our hours: each cause by itself, and that it always adds up."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.commitments.commitment import Commitment, UnusedCapacity, use
from gateway.costs.periods import Period
from gateway.costs.reconciliation.bill_accounts import Ours
from gateway.costs.reconciliation.bill_check import check_bill
from gateway.costs.reconciliation.bill_differences import KINDS
from gateway.costs.reconciliation.bill_files import BillLine
from gateway.units import HOUR, NANO

DAY = Period(0, 24 * HOUR)
RATE = 2_500_000
SERIES = ("H100", "", "on_demand")


def line(first, hours=1, gpu_hours=None, cost=None, **changes):
    """Full hours of one GPU at 2.50, unless said otherwise."""
    quantity = Fraction(str(gpu_hours)) if gpu_hours is not None else Fraction(hours)
    fields = {
        "line": 2, "start": int(first * HOUR), "end": int((first + hours) * HOUR), "resource": "a",
        "gpu_type": "H100", "region": "", "purchase": "on_demand", "nano_gpu_hours": round(quantity * NANO),
        "cost": str(float(quantity) * 2.5) if cost is None else cost, "currency": "USD", "description": "",
    }  # fmt: skip
    return BillLine(**{**fields, **changes})


def ours(hours, engine="a", gpus=1, series=SERIES, rate=RATE):
    """`hours`: hour number → GPU-hours."""
    nano = {hour * HOUR: round(Fraction(str(amount)) * NANO) for hour, amount in hours.items()}
    return Ours(engine, *series, gpus, nano, 0, sum(nano.values()) * rate)


def at_rate(gpu_type, region, purchase, at):
    return RATE if gpu_type == "H100" else None


def check(bill, own, known=("a",), rate_at=at_rate, *, currency="USD", within=DAY, unused=None):
    accounts = check_bill(bill, own, frozenset(known), rate_at, currency, within, unused=unused)
    for account in accounts:
        assert sum(d.nano for d in account.differences) == account.billed_nano - account.provisioned_nano
        assert sum(d.cost for d in account.differences) == account.billed_cost - account.own_cost
    return accounts


def only(accounts):
    """Kind → (GPU-hours, cost, hours) of the one account."""
    [account] = accounts
    return {d.kind: (float(Fraction(d.nano, NANO)), float(d.cost), d.hours) for d in account.differences}


def reserved(gpus=1, hours=(), region=""):
    """Capacity at 1.80 of which engines use one GPU in `hours`."""
    commitment = Commitment(
        1, "H100", region, gpus, DAY.start, DAY.end, 1_800_000, "0", "USD", "", recorded_at=0, recorded_by="k"
    )
    usage = {("H100", ""): {hour * HOUR: NANO for hour in hours}}
    return UnusedCapacity(use([commitment], usage, DAY))


RESERVED = {"purchase": "reserved"}
SPOT = {"resource": "", "region": "eu", "purchase": "spot"}
RESERVED_RATE = {"rate_at": lambda *_: 1_800_000}
OWN_RESERVED = ours({0: 1, 1: 1}, series=("H100", "", "reserved"), rate=1_800_000)
ALL_DAY = line(0, 24, cost="43.20", **RESERVED)
L40 = ours({0: 1}, series=("L40", "", "on_demand"), rate=0)
CASES = (
    ([line(0), line(1)], [ours({0: 1, 1: 1})], {}, {}),
    ([line(0, 4)], [ours({0: 1, 3: 1})], {}, {"down": (2.0, 5.0, 2)}),
    ([line(0, 3)], [], {}, {"down": (3.0, 7.5, 3)}),  # known, and never up in the time
    ([line(0), line(1)], [ours({0: "0.25", 1: 1})], {}, {"partly_up": (0.75, 1.875, 1)}),
    # Rounding to whole minutes is less than a minute a GPU.
    ([line(0)], [ours({0: "0.99"})], {}, {"rounding": (0.01, 0.025, 1)}),
    ([line(0)], [ours({0: "0.98"})], {}, {"partly_up": (0.02, 0.05, 1)}),
    ([line(0, gpu_hours="0.99", cost="2.475")], [ours({0: 1})], {}, {"rounding": (-0.01, -0.025, 1)}),
    ([line(0)], [ours({0: 1, 5: 1})], {}, {"not_billed": (-1.0, -2.5, 1)}),
    ([line(0, 2, gpu_hours=1)], [ours({0: 1, 1: 1})], {}, {"billed_less": (-1.0, -2.5, 1)}),
    # More than its GPUs have, or an hour that is billed twice.
    ([line(0, gpu_hours=8, cost="20")], [ours({0: 1})], {}, {"more_than_time": (7.0, 17.5, 0)}),
    ([line(0, gpu_hours=8, cost="20")], [ours({0: 8}, gpus=8)], {}, {}),
    ([line(0, 2), line(1)], [ours({0: 1, 1: 1})], {}, {"more_than_time": (1.0, 2.5, 0)}),
    ([line(0), line(0)], [ours({0: "0.5"})], {}, {"partly_up": (0.5, 1.25, 1), "more_than_time": (1.0, 2.5, 0)}),
    # An engine without region stands in the only series of its GPU type.
    ([line(0, **SPOT)], [ours({0: 1})], {}, {}),
    ([line(0, cost="3")], [ours({0: 1})], {}, {"rate": (0.0, 0.5, 0)}),
    ([line(0, gpu_type="L40")], [L40], {}, {"no_price": (0.0, 2.5, 0)}),
    ([line(0, currency="EUR"), line(1)], [ours({0: 1, 1: 1})], {}, {"other_currency": (0.0, -2.5, 0)}),
    # A price that changes within an hour is what remains.
    ([line(0)], [Ours("a", *SERIES, 1, {0: NANO}, 0, NANO * 3_000_000)], {}, {"remaining": (0.0, -0.5, 0)}),
    (
        [line(0), line(0, gpu_hours=-1, cost="-2.5"), line(0, gpu_hours=0, cost="0.4")], [ours({0: 1})], {},
        {"taken_back": (-1.0, -2.5, 0), "other_charges": (0.0, 0.4, 0)},
    ),
    # Reserved capacity that no engine used; a commitment pays for its hours once, and for its own series and region.
    ([ALL_DAY], [OWN_RESERVED], {"unused": reserved(hours=(0, 1)), **RESERVED_RATE}, {"reserved_unused": (22.0, 39.6, 22)}),
    ([ALL_DAY], [OWN_RESERVED], RESERVED_RATE, {"down": (22.0, 39.6, 22)}),
    (
        [ALL_DAY, ALL_DAY], [OWN_RESERVED], {"unused": reserved(hours=(0, 1)), **RESERVED_RATE},
        {"reserved_unused": (22.0, 39.6, 22), "down": (22.0, 39.6, 22), "more_than_time": (2.0, 3.6, 0)},
    ),
    ([line(0, 2)], [ours({0: 1})], {"unused": reserved()}, {"down": (1.0, 2.5, 1)}),
)  # fmt: skip  # a case each


@pytest.mark.parametrize(("bill", "own", "about", "differences"), CASES)
def test_each_cause_by_itself(bill, own, about, differences):
    assert only(check(bill, own, **about)) == differences


def test_resources_that_are_no_engine():
    """Where others are engines, they are strangers; where none is, they are compared by series."""
    [a, stranger] = check([line(0), line(0, 2, resource="zz", cost="9")], [ours({0: 1})])
    assert a.differences == ()
    assert only([stranger]) == {"never_registered": (2.0, 9.0, 2)}
    bill = [line(0, resource="i-1"), line(0, resource="i-2"), line(1, resource="i-1")]
    found = check(bill, [ours({0: 1, 1: 1}), ours({0: 1}, "b")], known=("a", "b"))
    assert only(found) == {}
    assert (found[0].engine, found[0].billed_nano) == ("", 3 * NANO)


def test_a_reservation_that_is_billed_under_a_name_of_its_own():
    reservation = line(0, 24, 48, resource="ri-1", cost="90", **RESERVED)
    found = check([line(0), reservation], [ours({0: 1})], unused=reserved())
    assert only(found[1:]) == {"reserved_unused": (24.0, 43.2, 24), "never_registered": (24.0, 46.8, 24)}
    paid = line(0, 24, resource="ri-1", cost="43.20", **RESERVED)
    assert only(check([line(0), paid], [ours({0: 1})], unused=reserved())[1:]) == {
        "reserved_unused": (24.0, 43.2, 24)
    }
    assert found[1].differences[0].matched


@pytest.mark.parametrize("category", ["tax", "credit", "purchase", "adjustment"])
def test_charges_without_time_have_a_kind_each(category):
    bill = [line(0), line(0, gpu_hours=0, cost="-0.4", gpu_type="", resource="", category=category)]
    found = check(bill, [ours({0: 1})])
    assert {d.kind: d.cost for account in found for d in account.differences} == {category: Fraction("-0.4")}


def test_a_line_across_the_end_of_the_time_is_shared_without_remainder():
    whole = line(22, 4, gpu_hours="3.000000001", cost="7.77")
    before = check([whole], [], within=DAY)
    after = check([whole], [], within=Period(DAY.end, 2 * DAY.end))
    assert before[0].billed_nano + after[0].billed_nano == whole.nano_gpu_hours
    assert before[0].billed_cost + after[0].billed_cost == Fraction("7.77")


def test_each_kind_says_whether_it_is_explained_and_why():
    assert {kind for kind, (explained, _) in KINDS.items() if not explained} == {
        "no_price", "other_currency", "billed_less", "more_than_time", "remaining",
    }  # fmt: skip
    assert all(reason for _, reason in KINDS.values())


bills = st.lists(
    st.builds(
        lambda start, length, nano, cost, resource, currency, gpu_type, purchase: line(
            0, start=start, end=start + length, nano_gpu_hours=nano, cost=str(cost), resource=resource,
            currency=currency, gpu_type=gpu_type, purchase=purchase,
        ),
        st.integers(-5 * HOUR, 30 * HOUR),
        st.integers(1, 40 * HOUR),
        st.integers(-2 * NANO, 60 * NANO),
        st.decimals(-5, 500, places=4),
        st.sampled_from(["", "a", "b", "stranger"]),
        st.sampled_from(["USD", "USD", "EUR"]),
        st.sampled_from(["H100", "L40"]),
        st.sampled_from(["on_demand", "spot"]),
    ),
    max_size=6,
)  # fmt: skip  # as they are declared
engines = st.lists(
    st.builds(
        lambda engine, gpu_type, gpus, hours, cost: Ours(
            engine, gpu_type, "", "on_demand", gpus,
            {hour * HOUR: min(nano, gpus * NANO) for hour, nano in hours.items()}, 0, cost,
        ),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["H100", "L40"]),
        st.integers(1, 8),
        st.dictionaries(st.integers(0, 23), st.integers(1, 8 * NANO), max_size=5),
        st.integers(0, 10**18),
    ),
    max_size=5, unique_by=lambda own: (own.engine, own.gpu_type),
)  # fmt: skip


@given(bills, engines, st.sampled_from(["USD", None]))
def test_differences_always_sum_to_the_whole(bill, own, currency):
    accounts = check(bill, own, known=("a", "b", "c"), currency=currency)
    assert sum(a.provisioned_nano for a in accounts) == sum(sum(o.hours.values()) for o in own)
    assert sum(a.own_cost for a in accounts) == Fraction(sum(o.cost for o in own), 10**15)
    inside = sum(
        Fraction(b.nano_gpu_hours) * max(0, min(b.end, DAY.end) - max(b.start, DAY.start)) / (b.end - b.start)
        for b in bill
    )
    assert abs(sum(a.billed_nano for a in accounts) - inside) <= len(bill)


@pytest.mark.parametrize(("region", "kind"), [("us", "down"), ("eu", "reserved_unused")])
def test_a_reservation_of_another_region_pays_for_nothing_here(region, kind):
    eu = line(0, 2, region="eu", **RESERVED)
    assert kind in only(check([eu], [ours({0: 1})], unused=reserved(region=region)))
