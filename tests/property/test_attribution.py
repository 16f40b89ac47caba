"""What must be true of the division of an hour and of the posted rows, whatever the records, sightings, prices and
weights."""

import shutil
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orjson import dumps, loads
from sqlalchemy import insert, select, update

from gateway.costs.periods import month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.attribution import (
    BRIDGED,
    Attempt,
    HourInput,
    divide,
    largest_remainder,
    nano_gpu_hours,
    run,
)
from gateway.costs.rollups.posting import BY_BOOK, FIGURES, RowKey, RowPrice, corrections
from gateway.costs.rollups.rollup import imbalance, roll
from gateway.costs.rollups.token_weights import UNCALIBRATED, Weights, omega
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import calibrations, engine_spans, periods, prices, rollups
from gateway.units import HOUR
from tests.support.search import examples
from tests.unit.gateway.metering.make import record

bounded = examples(150)
few = examples(10)
SPAN = 3 * HOUR
_FINE = 1 << 44

times = st.one_of(st.integers(-HOUR, SPAN), st.integers(-4, 12).map(lambda quarters: quarters * HOUR // 4))
counts = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 10**6))
picos = st.one_of(st.just(0), st.integers(0, 10**12))
weights = st.one_of(
    st.just(UNCALIBRATED), st.builds(Weights, st.integers(1, 9), picos, picos, picos, picos, picos)
)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair) + 1)), max_size=4)


@st.composite
def attempt(draw, marked=False):
    start = draw(times)
    end = start + draw(st.one_of(st.integers(0, 50), st.integers(0, SPAN)))
    prompt, done = draw(counts), draw(counts)
    cached = draw(st.one_of(st.none(), st.integers(0, prompt)))
    marks, p, c = [], 0, 0
    for hour in range(start // HOUR * HOUR + HOUR, end, HOUR) if marked else ():
        p, c = draw(st.integers(p, prompt)), draw(st.integers(c, done))
        hit = None if cached is None else draw(st.integers(0, min(cached, p)))
        marks.append(f"[{hour},{p},{'null' if hit is None else hit},{c}]")
    text = f"[{','.join(marks)}]" if marks else None
    return start, end, prompt, cached, done, draw(st.integers(0, 2)), text


def named(found):
    return [Attempt(f"id-{n:02}", *fields) for n, fields in enumerate(found)]


@st.composite
def hours(draw):
    return HourInput(
        draw(st.sampled_from([0, HOUR])),
        draw(st.sampled_from([1, 7, 8])),
        up=draw(spans),
        startup=draw(spans),
        weights=draw(weights),
    )


attempts = st.lists(attempt(), max_size=12).map(named)
marked = st.lists(attempt(marked=True), max_size=12).map(named)


def cuts_in(hour, found):
    return sorted({hour + t for t in found})


cuts = st.lists(st.integers(1, HOUR - 1), max_size=3)


def with_cuts(pool, found):
    return HourInput(pool.hour, pool.gpus, pool.up, pool.startup, cuts_in(pool.hour, found), pool.weights)


def by_id(pieces, found):
    """All that the pieces say, without the order of attempts."""
    return [
        (
            p.start, p.end, p.provisioned_us, p.startup_us, p.busy_us, p.total, p.headroom, p.startup, p.idle,
            sorted((found[n].id, *rest) for n, *rest in zip(p.who, p.shares, *p.omegas, strict=True)),
        )
        for p in pieces
    ]  # fmt: skip


@given(hours(), cuts, marked)
@bounded
def test_the_parts_sum_to_the_whole(pool, cut, found):
    pieces = divide(with_cuts(pool, cut), found)
    for piece in pieces:
        parts = (*piece.shares, piece.headroom, piece.startup, piece.idle)
        assert min(parts) >= 0
        assert sum(parts) == piece.total
        assert piece.headroom == 0 or pool.weights.calibrated
    [uncut] = divide(pool, found)
    assert sum(p.total for p in pieces) == uncut.total == nano_gpu_hours(uncut.provisioned_us, pool.gpus)
    for name in ("provisioned_us", "startup_us", "busy_us"):
        assert sum(getattr(p, name) for p in pieces) == getattr(uncut, name)


@given(hours(), cuts, marked, st.randoms())
@bounded
def test_the_order_of_attempts_and_sightings_changes_nothing(pool, cut, found, random):
    pool = with_cuts(pool, cut)
    other, up, startup = list(found), list(pool.up), list(pool.startup)
    for some in (other, up, startup):
        random.shuffle(some)
    again = HourInput(pool.hour, pool.gpus, up, startup, pool.cuts, pool.weights)
    assert by_id(divide(again, other), other) == by_id(divide(pool, found), found)


def elementary(pool, runs, start, end):
    """Microseconds of [start, end) by definition: moment by moment between all times at which anything
    changes. Busy, starting, provisioned."""
    seen = sorted([*pool.up, *pool.startup])
    gaps, reached = [], None
    for begins, ends in seen:
        if reached is not None and reached < begins < reached + BRIDGED:
            gaps.append((reached, begins))
        reached = ends if reached is None else max(reached, ends)
    every = [*runs, *seen, *gaps, (start, end)]
    busy = starting = provisioned = 0
    for a, b in pairwise(sorted({t for interval in every for t in interval if start <= t <= end})):

        def inside(intervals, a=a, b=b):
            return any(s <= a and b <= e for s, e in intervals)

        if inside(runs):
            busy += b - a
        elif inside(pool.startup) and not inside(pool.up):
            starting += b - a
        if inside(runs) or inside(seen) or inside(gaps):
            provisioned += b - a
    return busy, starting, provisioned


def weight_in(pool, one, start, end):
    """ω of an attempt without marks in [start, end), a fraction: the whole of it, or the part of its time,
    rounded down on both sides."""
    begins, ends = run(one.dispatched, one.ended)
    whole = sum(omega(pool.weights, one.prompt, one.cached, one.completion, ends - begins, one.loads))

    def until(at):
        passed = min(max(at, begins), ends) - begins
        return Fraction(whole * _FINE * passed // (ends - begins), _FINE)

    return until(end) - until(start)


@given(hours(), cuts, attempts)
@bounded
def test_each_part_is_within_one_unit_of_what_fractions_say(pool, cut, found):
    """Held against a reference without integers, intervals or clever orders."""
    pool = with_cuts(pool, cut)
    runs = [run(a.dispatched, a.ended) for a in found]
    elapsed = given_out = 0
    for piece, (start, end) in zip(
        divide(pool, found), pairwise((pool.hour, *pool.cuts, pool.hour + HOUR)), strict=True
    ):
        busy, starting, provisioned = elementary(pool, runs, start, end)
        assert (piece.busy_us, piece.startup_us, piece.provisioned_us) == (busy, starting, provisioned)
        elapsed += provisioned
        assert piece.total == int(Fraction(elapsed * pool.gpus, HOUR) * 10**9) - given_out
        given_out += piece.total
        here = [n for n, (s, e) in enumerate(runs) if s < end and e > start]
        assert list(piece.who) == here
        spent = sum(piece.shares) + piece.headroom
        if provisioned:
            unit = Fraction(piece.total, provisioned)
            for part, time in (
                (spent, busy),
                (piece.startup, starting),
                (piece.idle, provisioned - busy - starting),
            ):
                assert abs(part - unit * time) < 1
        each = {n: weight_in(pool, found[n], start, end) for n in here}
        demand = sum(each.values())
        capacity = max(demand, Fraction(busy * pool.gpus * 1000)) if pool.weights.calibrated else demand
        if capacity == demand:
            assert piece.headroom == 0
        if capacity:
            for n, share in zip(piece.who, piece.shares, strict=True):
                assert abs(share - spent * each[n] / capacity) < 1
            assert abs(piece.headroom - spent * (capacity - demand) / capacity) < 1
        elif here:
            assert all(abs(share - Fraction(spent, len(here))) < 1 for share in piece.shares)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**12), min_size=1, max_size=40), st.randoms())
@bounded
def test_largest_remainder_is_exact_and_within_one_of_the_ideal(total, found, random):
    names = [f"{n:03}" for n in range(len(found))]
    parts = largest_remainder(total, found, names)
    assert sum(parts) == total
    ideal = found if any(found) else [1] * len(found)
    assert all(abs(p - Fraction(total * w, sum(ideal))) < 1 for p, w in zip(parts, ideal, strict=True))
    order = list(range(len(found)))
    random.shuffle(order)
    again = largest_remainder(total, [found[n] for n in order], [names[n] for n in order])
    assert again == [parts[n] for n in order], "ties go by name, not by place"


@given(marked, st.lists(st.integers(-HOUR, 2 * SPAN), max_size=6), weights)
@bounded
def test_what_an_attempt_weighs_in_all_hours_is_what_it_weighs(found, cut, weight):
    """However it is cut and whatever its marks: input, cached and output sum to the attempt's. So do tokens
    kept, without marks; with them they are counted from mark to mark."""
    sums = {a.id: [0, 0, 0, 0] for a in found}
    for hour in range(-HOUR, 3 * SPAN, HOUR):
        pool = HourInput(
            hour, 1, cuts=[t for t in sorted(set(cut)) if hour < t < hour + HOUR], weights=weight
        )
        for piece in divide(pool, found):
            for n, *parts in zip(piece.who, *piece.omegas, strict=True):
                assert min(parts) >= 0
                sums[found[n].id] = [a + b for a, b in zip(sums[found[n].id], parts, strict=True)]
    for a in found:
        start, end = run(a.dispatched, a.ended)
        whole = omega(weight, a.prompt, a.cached, a.completion, end - start, a.loads)
        parts = 4 if a.marks is None else 3
        assert sums[a.id][:parts] == list(whole[:parts])


@given(marked, st.integers(0, 5), st.sampled_from([UNCALIBRATED, Weights(1, 7_000, 0, 90_000, 0, 0)]))
@bounded
def test_an_attempt_with_marks_is_like_its_pieces_one_by_one(found, hour, weight):
    """Cut by hand at the hours' turns into attempts of their own, each with the counts of its hour."""
    hour *= HOUR
    # Nothing cached: what the cache held of which piece is no question then.
    found = [a._replace(cached=None, marks=a.marks and _without_cached(a.marks)) for a in found]
    pool = HourInput(hour, 8, up=[(hour, hour + HOUR // 2)], weights=weight)
    by_hand = [p for a in found for p in _cut(a)]
    [one], [other] = divide(pool, found), divide(pool, by_hand)
    assert [found[n].id for n in one.who] == [by_hand[n].id for n in other.who]
    assert list(one.shares) == list(other.shares)
    assert (one.total, one.idle, one.headroom) == (other.total, other.idle, other.headroom)


def _without_cached(text):
    return dumps([[t, p, None, c] for t, p, _, c in loads(text)]).decode()


def _cut(a):
    """Pieces keep the id: no two of one attempt meet in an hour. One that has no marks stays whole."""
    before = (a.dispatched, 0, 0)
    for t, p, _, c in loads(a.marks) if a.marks else ():
        yield a._replace(
            dispatched=before[0], ended=t, prompt=p - before[1], completion=c - before[2], marks=None
        )
        before = (t, p, c)
    yield a._replace(
        dispatched=before[0], prompt=a.prompt - before[1], completion=a.completion - before[2], marks=None
    )


keys = st.builds(
    RowKey,
    st.sampled_from([0, 5]),
    st.just("usage"),
    st.sampled_from("ab"),
    *[st.just("")] * 5,
    st.sampled_from([0, 1]),
)
figures = st.tuples(*[st.integers(0, 3)] * len(FIGURES)).filter(any)
rates = st.sampled_from([RowPrice(1, "USD"), RowPrice(2, "USD")])


@given(st.lists(st.tuples(st.dictionaries(keys, figures, max_size=4), rates), min_size=1, max_size=5))
@bounded
def test_a_correction_nets_to_the_difference(states):
    """An hour goes from state to state, and each month is closed with the price of its time."""
    kept = []
    for fresh, now in states:
        made = corrections(kept, fresh, lambda _, now=now: now)
        kept += [(key, now if price == BY_BOOK else price, row) for key, price, row in made]
        sums = {}
        for key, price, row in kept:
            held = sums.get((key, price), (0,) * len(FIGURES))
            sums[key, price] = tuple(a + b for a, b in zip(held, row, strict=True))
        assert {at: row for at, row in sums.items() if any(row)} == {
            (key, now): row for key, row in fresh.items()
        }
        assert corrections(kept, fresh, lambda _, now=now: now) == [], "nothing is left to correct"


# Through the ledger:

START = month_of("2026-10").end - 2 * HOUR
"""Two hours of October, and then November."""
LATE = month_of("2027-06").start


@pytest.fixture(scope="module")
def fresh_ledger():
    """Makes empty ledgers, each a copy of one that was migrated once."""
    with TemporaryDirectory() as directory:
        template = Path(directory) / "template.db"
        made = Ledger(f"sqlite:///{template}")
        roll(made, 0)
        made.close()
        numbers = iter(range(10**6))

        def fresh():
            path = template.with_name(f"{next(numbers)}.db")
            shutil.copyfile(template, path)
            return Ledger(f"sqlite:///{path}")

        yield fresh


@st.composite
def ledgers(draw):
    """What comes into a ledger: records (in a first state of the world, and late), sightings, prices."""
    made = []
    for n, a in enumerate(draw(st.lists(attempt(marked=True), min_size=1, max_size=10))):
        start, end, prompt, cached, done, adapter_loads, _ = a
        rejected = draw(st.integers(0, 5)) == 0
        made.append(
            record(
                f"r{n}", tenant=f"t{n % 3}", engine=draw(st.sampled_from(["gpu-a", "gpu-b"])), dispatched=START + start,
                ended=START + end, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=done,
                adapter_loads=adapter_loads, billable=n % 4 > 0, outcome="rejected" if rejected else "ok",
            )
        )  # fmt: skip
    seen = [
        (START + a, START + b, draw(st.sampled_from(["up", "startup"])))
        for a, b in dict.fromkeys(draw(spans))
    ]
    rises = draw(
        st.lists(
            st.tuples(st.integers(-HOUR, SPAN), st.integers(1, 10**7)), max_size=2, unique_by=lambda r: r[0]
        )
    )
    weight = draw(st.one_of(st.none(), st.integers(1, 10**12)))
    return made, seen, [(0, 5_000_000), *((START + t, rate) for t, rate in rises)], weight


def see(ledger, start, end, phase):
    """Its end is marked as far as a gap can be bridged, like its start: a later sighting may be there."""
    row = {
        "engine": "gpu-a", "worker": f"{start} {end}", "started": start, "phase": phase, "seen": end,
        "gpu_type": "H100", "gpu_count": 1, "region": "", "purchase": "on_demand", "base_model": "base",
    }  # fmt: skip
    every = range((start - BRIDGED) // HOUR * HOUR, end + BRIDGED + 1, HOUR)
    with ledger.write() as connection:
        connection.execute(insert(engine_spans), row)
        mark_dirty(connection, [(hour, "gpu-a", "H100", 1) for hour in every])


def price(ledger, start, rate):
    row = {
        "gpu_type": "H100", "region": "", "purchase": "on_demand", "rate_micros": rate, "currency": "USD",
        "valid_from": start, "recorded_at": 0,
    }  # fmt: skip
    with ledger.write() as connection:
        connection.execute(insert(prices), row)
        every = range(START - 2 * HOUR, START + 3 * SPAN, HOUR)
        mark_dirty(connection, [(h, engine, "H100", 1) for h in every for engine in ("gpu-a", "gpu-b")])


def calibrate(ledger, picoseconds):
    row = {
        "id": 1, "gpu_type": "H100", "base_model": "base", "engine_version": "", "valid_from": 0, "recorded_at": 0,
        "prefill_ps": picoseconds, "cached_ps": 1, "decode_ps": 9, "kv_ps": 3, "load_ps": 7, "document": "{}",
    }  # fmt: skip
    with ledger.write() as connection:
        connection.execute(insert(calibrations), row)


def close(ledger, name):
    """Rolled up, its rates frozen by the price book, the month there."""
    roll(ledger, LATE)
    row = {
        "month": name, "state": "closed", "first_batch": 0, "cutoff_batch": 1, "closing_at": 0, "closed_by": "me",
        "policy": "none",
    }  # fmt: skip
    with ledger.write() as connection:
        book = PriceBook(read_prices(connection))
        connection.execute(insert(periods), row)
        seal(connection, "month", name)
        c = rollups.c
        for piece in connection.execute(select(c.piece).distinct().where(c.posted == name)).scalars().all():
            rate = book.rate("H100", "", "on_demand", piece)
            frozen = update(rollups).where(
                c.posted == name, c.piece == piece, c.rate_micros.is_(None), c.gpu_type != ""
            )
            connection.execute(frozen.values(rate_micros=rate, currency="USD"))


def posted_rows(ledger, *, posted=None):
    names = [c.name for c in rollups.c if c.name != "id"]
    query = select(*(rollups.c[name] for name in names)).order_by(*(rollups.c[name] for name in names))
    if posted:
        query = query.where(rollups.c.posted == posted)
    with ledger.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


def netted(ledger):
    """Over all postings, by hour, key and the price that holds for the row: figures; those that cancel are
    gone."""
    names = ("hour", "engine", "gpu_type", "piece", "bucket", "tenant", "calibration")
    sums = {}
    with ledger.read() as connection:
        book = PriceBook(read_prices(connection))
        for row in connection.execute(select(rollups)).mappings():
            rate = row["rate_micros"]
            if rate is None:
                rate = book.rate(row["gpu_type"], row["region"], row["purchase"], row["piece"])
            key = (*(row[name] for name in names), rate)
            held = sums.get(key, (0,) * len(FIGURES))
            sums[key] = tuple(a + row[name] for a, name in zip(held, FIGURES, strict=True))
    return {key: row for key, row in sums.items() if any(row)}


@given(ledgers(), st.randoms())
@few
def test_order_and_batches_and_moments_of_rolling_change_nothing(fresh_ledger, world, random):
    records, seen, rises, weight = world
    once, piecemeal = fresh_ledger(), fresh_ledger()
    for ledger in (once, piecemeal):
        if weight is not None:
            calibrate(ledger, weight)
    for span in seen:
        see(once, *span)
    for rise in rises:
        price(once, *rise)
    once.insert(records)
    roll(once, LATE)

    steps = [(see, span) for span in seen] + [(price, rise) for rise in rises]
    left = list(records)
    random.shuffle(left)
    while left:
        size = random.randint(1, 4)
        batch, left = left[:size], left[size:]
        steps.append((Ledger.insert, (batch + random.sample(records, min(2, len(records))),)))
    random.shuffle(steps)
    for step, arguments in steps:
        step(piecemeal, *arguments)
        if random.random() < 0.4:
            roll(piecemeal, START + random.randint(-HOUR, 2 * SPAN), patience=random.choice([None, 0]))
    assert roll(piecemeal, LATE).pending == 0
    assert posted_rows(piecemeal) == posted_rows(once)
    assert imbalance(piecemeal) == imbalance(once) == 0
    for ledger in (once, piecemeal):
        ledger.close()


@given(ledgers(), st.randoms(), st.integers(1, 9))
@few
def test_what_comes_after_closing_nets_to_the_difference_and_closed_months_stand(
    fresh_ledger, world, random, least
):
    """Late records, sightings and prices; a second month closed in between."""
    records, seen, rises, _ = world
    known, late = fresh_ledger(), fresh_ledger()
    price(late, *rises[0])
    steps = (
        [(Ledger.insert, ([r],)) for r in records]
        + [(see, s) for s in seen]
        + [(price, r) for r in rises[1:]]
    )
    random.shuffle(steps)
    frozen = {}
    closing = iter(["2026-10", "2026-11"])
    for n, (step, arguments) in enumerate(steps, 1):
        step(late, *arguments)
        roll(late, LATE)
        if n % least == 0 and (name := next(closing, None)):
            close(late, name)
            frozen[name] = posted_rows(late, posted=name)
    for rise in rises:
        price(known, *rise)
    for step, arguments in steps:
        if step is not price:
            step(known, *arguments)
    assert roll(late, LATE).pending == roll(known, LATE).pending == 0
    assert {name: posted_rows(late, posted=name) for name in frozen} == frozen
    assert netted(late) == netted(known)
    assert imbalance(late) == imbalance(known) == 0
    for ledger in (known, late):
        ledger.close()
