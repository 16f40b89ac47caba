"""What must be true of the division of cost, whatever the records and rates."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.costs.attribution import Work, attribute, busy, largest_remainder, nano_gpu_hours
from gateway.costs.periods import HOUR, Period
from gateway.costs.prices import Price, PriceBook
from gateway.costs.report import cost_report
from gateway.metering.ledger import Ledger
from tests.unit.gateway.metering.make import record

SPAN = 3 * HOUR
bounded = settings(max_examples=60, deadline=None)


@st.composite
def work(draw):
    start = draw(st.integers(0, SPAN))
    return (
        ("e1", "H100", draw(st.sampled_from([1, 8]))),
        start,
        start + draw(st.one_of(st.integers(1, 50), st.integers(1, SPAN))),
        draw(st.one_of(st.just(0), st.integers(0, 10**6))),
    )


works = st.lists(work(), max_size=25).map(
    lambda found: [Work(f"id-{n:02}", *fields) for n, fields in enumerate(found)]
)
cuts = st.lists(st.integers(1, 2 * SPAN), max_size=4).map(
    lambda times: lambda _, start, end: sorted({t for t in times if start < t < end})
)


def ordered(found):
    return sorted(found, key=lambda w: (w.pool, w.start, w.id))


def origin(found, pool):
    """Nano-GPU-hours of a pool, hour by hour, from the definition."""
    total = 0
    for hour in range(0, 3 * SPAN, HOUR):
        inside = [(max(w.start, hour), min(w.end, hour + HOUR)) for w in found if w.pool == pool]
        total += nano_gpu_hours(busy((a, b) for a, b in inside if a < b), pool[2])
    return total


@given(works, cuts)
@bounded
def test_shares_sum_to_the_origin(found, cut):
    shares = list(attribute(ordered(found), cut))
    assert all(s.nano_gpu_hours >= 0 for s in shares)
    for pool in {w.pool for w in found}:
        assert sum(s.nano_gpu_hours for s in shares if s.work.pool == pool) == origin(found, pool)


@given(works, cuts, st.randoms())
@bounded
def test_the_order_of_records_changes_nothing(found, cut, random):
    """Within a pool and hour, records may come in any order that begins with the earlier hour."""

    def result(given_order):
        return sorted((s.work.id, s.piece, s.nano_gpu_hours) for s in attribute(given_order, cut))

    shuffled = list(found)
    random.shuffle(shuffled)
    by_hour = sorted(shuffled, key=lambda w: (w.pool, w.start // HOUR))
    assert result(by_hour) == result(ordered(found))


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
@bounded
def test_largest_remainder_is_exact_and_within_one_of_the_ideal(total, weights):
    parts = largest_remainder(total, [(f"{n:03}", w) for n, w in enumerate(weights)])
    assert sum(parts.values()) == total
    whole = sum(weights)
    if whole:
        for n, w in enumerate(weights):
            assert abs(parts[f"{n:03}"] - Fraction(total * w, whole)) < 1


@st.composite
def price_lists(draw):
    starts = draw(st.lists(st.integers(0, SPAN), min_size=1, max_size=4, unique=True))
    rates = draw(st.lists(st.integers(0, 10**9), min_size=4, max_size=4))
    return [
        Price("H100", rate, "USD", "on_demand", "", start, None, 0)
        for start, rate in zip([0, *starts], rates, strict=False)
    ]


@given(works, price_lists())
@bounded
def test_cost_is_quantity_times_rate_exactly(found, prices):
    """Sum of parts times rate = whole times rate, as integers of 10**-15, in each stretch of one rate."""
    book = PriceBook(prices)
    shares = list(attribute(ordered(found), book.changes))
    cost = sum(s.nano_gpu_hours * book.rate("H100", s.piece) for s in shares)
    pieces = {(s.work.pool, s.piece) for s in shares}
    whole = 0
    for pool, piece in pieces:
        quantity = sum(s.nano_gpu_hours for s in shares if (s.work.pool, s.piece) == (pool, piece))
        whole += quantity * book.rate("H100", piece)
    assert cost == whole
    lowest, highest = min(p.rate_micros for p in prices), max(p.rate_micros for p in prices)
    quantity = sum(s.nano_gpu_hours for s in shares)
    assert lowest * quantity <= cost <= highest * quantity


@given(works, st.integers(1, 25))
@settings(max_examples=15, deadline=None)
def test_batches_of_insertion_change_nothing_in_the_report(found, size):
    records = [
        record(
            w.id, tenant=f"t{n % 3}", gpu_count=w.pool[2], dispatched=w.start, ended=w.end,
            prompt_tokens=w.weight, completion_tokens=0, billable=n % 4 > 0,
        )
        for n, w in enumerate(found)
    ]  # fmt: skip
    reports = []
    for batches in (
        [records],
        [records[n : n + size] for n in range(0, len(records), size)],
        [list(reversed(records)), records],
    ):
        ledger = Ledger("sqlite://")
        for batch in batches:
            ledger.insert(batch)
        reports.append(cost_report(ledger, Period(0, 3 * SPAN)))
        ledger.close()
    assert reports[0] == reports[1] == reports[2]
    both = [reports[0]["totals"], reports[0]["retry_waste"]["totals"]]
    assert sum(t["nano_gpu_hours"] for t in both) == sum(origin(found, p) for p in {w.pool for w in found})
