"""The roller on real databases: what is posted to which month, and that it is always a function of the ledger."""

import multiprocessing

import pytest
from sqlalchemy import delete, insert, select, update

from gateway.costs.calibration.fit import TERMS
from gateway.costs.calibration.store import add_calibration
from gateway.costs.periods import Period, month_of
from gateway.costs.rollups import rollup
from gateway.costs.rollups.provisioned import provisioned
from gateway.costs.rollups.rollup import Rolled, imbalance, roll
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import (
    calibrations,
    dirty_hours,
    engine_hours,
    engine_spans,
    ledger_state,
    prices,
    rollups,
    usage_records,
)
from gateway.units import HOUR
from tests.support.ledger_rows import calibration as row_of
from tests.support.ledger_rows import mark_closed, price, put, see_up
from tests.unit.gateway.metering.make import record

OCTOBER, NOVEMBER, DECEMBER = (month_of(f"2026-{n}").start for n in (10, 11, 12))
LATE = month_of("2027-06").start
GPU_HOUR = 10**9
HALF = HOUR // 2


def used(name, start=OCTOBER, length=HALF, **changes):
    return record(name, dispatched=start, ended=start + length, **changes)


def rows(ledger, *columns, **where):
    chosen = [rollups.c[name] for name in columns] or [c for c in rollups.c if c.name != "id"]
    query = select(*chosen).order_by(*chosen)
    for name, value in where.items():
        query = query.where(rollups.c[name] == value)
    with ledger.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


def whole(ledger, hour=OCTOBER):
    with ledger.read() as connection:
        return connection.execute(select(engine_hours).where(engine_hours.c.hour == hour)).mappings().one()


def marks(ledger):
    with ledger.read() as connection:
        return connection.execute(select(dirty_hours).order_by(dirty_hours.c.hour)).mappings().all()


def write(ledger, statement, *values, dirty=()):
    with ledger.write() as connection:
        connection.execute(statement, *values)
        mark_dirty(connection, [(hour, "gpu-a", "H100", 1) for hour in dirty])


def priced(ledger, rate, start, *, dirty=()):
    row = {
        "gpu_type": "H100", "region": "", "purchase": "on_demand", "rate_micros": rate, "currency": "USD",
        "valid_from": start, "recorded_at": start,
    }  # fmt: skip
    write(ledger, insert(prices), row, dirty=dirty)


def close(ledger, name, rate=None):
    """What closing does: the month is there, and its rows have their final rates."""
    mark_closed(ledger, name)
    if rate is not None:
        frozen = update(rollups).where(rollups.c.posted == name, rollups.c.rate_micros.is_(None))
        write(ledger, frozen.values(rate_micros=rate, currency="USD"))


def test_a_new_record_becomes_rows(ledger):
    ledger.insert([used("a", tenant="acme"), used("b", tenant="bolt", prompt_tokens=50)])
    assert roll(ledger, LATE) == Rolled(1, 0)
    assert rows(
        ledger, "posted", "hour", "piece", "bucket", "tenant", "requests", "nano_gpu_hours", "correction"
    ) == [
        ("2026-10", OCTOBER, OCTOBER, "usage", "acme", 1, GPU_HOUR // 8, False),
        ("2026-10", OCTOBER, OCTOBER, "usage", "bolt", 1, GPU_HOUR * 3 // 8, False),
    ]
    found = whole(ledger)
    assert (found["nano_gpu_hours"], found["records"], found["busy_us"]) == (GPU_HOUR // 2, 2, HALF)
    assert marks(ledger) == []
    assert imbalance(ledger) == 0


def change_terms(ledger):
    """Spot in the EU, then on demand in the US, as two workers see it, one a second later."""
    see_up(ledger, OCTOBER - HOUR, OCTOBER + HALF // 2, region="eu", purchase="spot")
    see_up(ledger, OCTOBER, OCTOBER + HALF // 2 + 1_000_000, region="eu", purchase="spot", worker="w2")
    see_up(ledger, OCTOBER + HALF // 2, OCTOBER + HOUR, region="us")
    see_up(ledger, OCTOBER + HALF // 2 + 1_000_000, OCTOBER + HOUR, region="us", worker="w2")
    ledger.insert([used("a", OCTOBER), used("b", OCTOBER, HOUR, tenant="bolt")])


def test_the_parts_of_such_an_hour_are_provisioned_each_on_its_terms(ledger):
    change_terms(ledger)
    see_up(ledger, OCTOBER, OCTOBER + HOUR, engine="gpu-b")
    roll(ledger, LATE)
    with ledger.read() as connection:
        parts = sorted(provisioned(connection, Period(OCTOBER, OCTOBER + HOUR)))
    assert [(part.engine, part.region, part.purchase, part.nano_gpu_hours) for part in parts] == [
        ("gpu-a", "eu", "spot", GPU_HOUR // 4),
        ("gpu-a", "us", "on_demand", GPU_HOUR * 3 // 4),
        ("gpu-b", "", "on_demand", GPU_HOUR),
    ]


def test_a_price_of_terms_that_held_for_a_part_of_a_closed_hour_corrects_it(ledger):
    change_terms(ledger)
    roll(ledger, LATE)
    mark_closed(ledger, "2026-10")
    price(ledger, "H100", "3", OCTOBER, valid_to=OCTOBER + HOUR, region="eu", purchase="spot")
    assert [mark["hour"] for mark in marks(ledger)] == [OCTOBER]


def test_a_price_change_cuts_the_hour(ledger):
    priced(ledger, 2_000_000, OCTOBER)
    priced(ledger, 3_000_000, OCTOBER + HALF)
    see_up(ledger, OCTOBER, OCTOBER + HOUR)
    ledger.insert([used("a", length=HALF + HALF // 2)])
    roll(ledger, LATE)
    assert rows(ledger, "piece", "bucket", "nano_gpu_hours") == [
        (OCTOBER, "usage", GPU_HOUR // 2),
        (OCTOBER + HALF, "idle", GPU_HOUR // 4),
        (OCTOBER + HALF, "usage", GPU_HOUR // 4),
    ]


@pytest.mark.parametrize(
    ("valid_from", "calibration"), [(OCTOBER - HOUR, 2), (OCTOBER, 2), (OCTOBER + HOUR, 1)]
)
def test_the_calibration_in_force_is_the_latest_before_the_hour(ledger, valid_from, calibration):
    early = {"id": 1, "valid_from": OCTOBER - 9 * HOUR, "prefill_ps": 36 * 10**12}
    late = {"id": 2, "valid_from": valid_from, "prefill_ps": 90 * 10**12}
    other = {"id": 3, "base_model": "other", "valid_from": OCTOBER, "prefill_ps": 1}
    put(ledger, calibrations, *(row_of(**row) for row in (early, late, other)))
    ledger.insert([used("a", prompt_tokens=10)])
    roll(ledger, LATE)
    used_nano = {1: GPU_HOUR // 10, 2: GPU_HOUR // 4}[calibration]
    assert rows(ledger, "bucket", "nano_gpu_hours", "calibration") == [
        ("headroom", GPU_HOUR // 2 - used_nano, calibration),
        ("usage", used_nano, calibration),
    ]
    assert whole(ledger)["calibration"] == calibration


def test_hours_that_have_not_begun_wait(ledger):
    ledger.insert([used("a"), used("b", OCTOBER + HOUR)])
    assert roll(ledger, OCTOBER + HOUR - 1) == Rolled(1, 0)
    assert [m["hour"] for m in marks(ledger)] == [OCTOBER + HOUR]
    assert roll(ledger, OCTOBER + HOUR) == Rolled(1, 0)


def test_without_patience_for_more_the_rest_is_pending_oldest_first(ledger):
    ledger.insert([used(f"r{n}", OCTOBER + n * HOUR) for n in reversed(range(5))])
    assert roll(ledger, LATE, patience=0) == Rolled(1, 4)
    assert rows(ledger, "hour") == [(OCTOBER,)]
    assert roll(ledger, LATE) == Rolled(4, 0)


def overtake(ledger, monkeypatch, record):
    """The record comes between the first reading of an hour and its writing."""
    compute, late = rollup._compute, [record]

    def overtaken(*args):
        found = compute(*args)
        if late:
            ledger.insert([late.pop()])
        return found

    monkeypatch.setattr(rollup, "_compute", overtaken)


def test_what_changes_meanwhile_is_rolled_again(ledger, monkeypatch):
    ledger.insert([used("a", tenant="acme")])
    overtake(ledger, monkeypatch, used("b", tenant="bolt"))
    assert roll(ledger, LATE) == Rolled(0, 0), "nothing of what was known at first is left"
    assert rows(ledger, "tenant", "requests") == [("acme", 1)], "what was known a moment ago"
    assert roll(ledger, LATE) == Rolled(1, 0)
    assert rows(ledger, "tenant", "requests") == [("acme", 1), ("bolt", 1)]


def test_hours_whose_records_are_removed_are_left_alone(ledger):
    ledger.insert([used("a"), used("b", NOVEMBER)])
    roll(ledger, LATE)
    before = rows(ledger)
    state = {"name": "pruned_before", "value": NOVEMBER}
    write(ledger, insert(ledger_state), state, dirty=[OCTOBER, NOVEMBER])
    write(ledger, delete(engine_hours).where(engine_hours.c.hour == NOVEMBER))
    assert roll(ledger, LATE) == Rolled(1, 0)
    assert rows(ledger) == before
    assert marks(ledger) == []


def test_records_removed_while_it_rolls_are_not_missed(ledger, monkeypatch):
    """The hour's mark outlives the first look at what is removed; the hour is not divided without them."""
    ledger.insert([used("a")])
    roll(ledger, LATE)
    before = rows(ledger)
    forget = rollup._forget_pruned

    def removing(owner):
        forget(owner)
        write(owner, delete(usage_records))
        write(owner, insert(ledger_state), {"name": "pruned_before", "value": NOVEMBER}, dirty=[OCTOBER])

    monkeypatch.setattr(rollup, "_forget_pruned", removing)
    roll(ledger, LATE)
    assert rows(ledger) == before


def closed_october(ledger):
    """Two tenants, one price, the month closed."""
    priced(ledger, 2_000_000, 0)
    see_up(ledger, OCTOBER, OCTOBER + HOUR)
    ledger.insert([used("a", tenant="acme"), used("b", tenant="bolt")])
    roll(ledger, LATE)
    close(ledger, "2026-10", 2_000_000)
    return rows(ledger, posted="2026-10")


def test_a_late_record_of_a_closed_month_is_a_correction_in_the_next(ledger):
    before = closed_october(ledger)
    ledger.insert([used("late", tenant="corgi", prompt_tokens=30)])
    assert roll(ledger, LATE) == Rolled(1, 0)
    assert rows(ledger, posted="2026-10") == before, "byte for byte"
    assert rows(ledger, "tenant", "requests", "nano_gpu_hours", "rate_micros", posted="2026-11", correction=True) == [
        ("acme", -1, -GPU_HOUR // 4, 2_000_000),
        ("acme", 1, GPU_HOUR // 8, None),
        ("bolt", -1, -GPU_HOUR // 4, 2_000_000),
        ("bolt", 1, GPU_HOUR // 8, None),
        ("corgi", 1, GPU_HOUR // 4, None),
    ], "idle stands as it was"  # fmt: skip
    assert {r[0] for r in rows(ledger, "hour", posted="2026-11")} == {OCTOBER}
    assert imbalance(ledger) == 0


def test_a_second_late_record_replaces_the_open_correction(ledger):
    before = closed_october(ledger)
    for name in ("late", "later"):
        ledger.insert([used(name, tenant=name)])
        roll(ledger, LATE)
    assert rows(ledger, posted="2026-10") == before
    assert [r[1] for r in rows(ledger, "tenant", "requests", posted="2026-11")] == [-1, 1, -1, 1, 1, 1]
    assert imbalance(ledger) == 0


def test_an_engine_that_never_was_leaves_no_hour(ledger):
    """A span taken back (its writer's clock was wrong) takes the hour with it."""
    see_up(ledger, OCTOBER, OCTOBER + HOUR)
    roll(ledger, LATE)
    write(ledger, delete(engine_spans), dirty=[OCTOBER])
    roll(ledger, LATE)
    with ledger.read() as connection:
        assert connection.execute(select(engine_hours)).all() == rows(ledger) == []


def test_an_hour_before_the_closed_months_is_posted_after_them(ledger):
    closed_october(ledger)
    september = OCTOBER - 2 * HOUR
    ledger.insert([used("late", september)])
    roll(ledger, LATE)
    assert rows(ledger, "posted", "hour", "correction", "requests", hour=september) == [
        ("2026-11", september, True, 1)
    ]


def test_a_closed_hour_that_changes_meanwhile_is_not_corrected_by_halves(ledger, monkeypatch):
    closed_october(ledger)
    ledger.insert([used("late", tenant="corgi")])
    overtake(ledger, monkeypatch, used("later", tenant="dingo"))
    assert roll(ledger, LATE) == Rolled(0, 1)
    assert rows(ledger, posted="2026-11") == []
    assert roll(ledger, LATE) == Rolled(1, 0)
    assert len(rows(ledger, posted="2026-11")) == 6


def test_an_imbalance_shows(ledger):
    ledger.insert([used("a"), used("b", OCTOBER + HOUR)])
    roll(ledger, LATE)
    write(
        ledger,
        update(rollups).where(rollups.c.hour == OCTOBER).values(nano_gpu_hours=rollups.c.nano_gpu_hours + 3),
    )
    assert imbalance(ledger) == 3
    write(ledger, delete(rollups).where(rollups.c.hour == OCTOBER + HOUR))
    assert imbalance(ledger) == 3 + GPU_HOUR // 2
    write(ledger, delete(engine_hours))
    assert imbalance(ledger) == GPU_HOUR // 2 + 3, "parts without a whole"


def _rolls(url, start):
    ledger = Ledger(url)
    start.wait(30)
    for _ in range(20):
        roll(ledger, LATE)
    ledger.close()


@pytest.mark.long
def test_two_rollers_at_once_come_to_what_one_comes_to(ledger, ledger_url, ledger_with):
    """In two processes, while records arrive and a month is closed under them."""
    priced(ledger, 2_000_000, 0)
    first = [used(f"r{n}", OCTOBER + n * HALF // 3, HALF, tenant=f"t{n % 4}") for n in range(150)]
    ledger.insert(first)
    roll(ledger, LATE)
    close(ledger, "2026-10", 2_000_000)
    closed = rows(ledger, posted="2026-10")
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    rollers = [context.Process(target=_rolls, args=(ledger_url, start)) for _ in range(2)]
    for roller in rollers:
        roller.start()
    start.set()
    late = [used(f"l{n}", OCTOBER + n * HOUR // 5, HALF, tenant=f"t{n % 3}") for n in range(100)]
    late += [used(f"n{n}", NOVEMBER + n * HOUR // 5, HALF, tenant=f"t{n % 3}") for n in range(100)]
    for n in range(0, len(late), 20):
        ledger.insert(late[n : n + 20])
    for roller in rollers:
        roller.join(60)
        assert roller.exitcode == 0
    roll(ledger, LATE)
    assert marks(ledger) == []
    assert rows(ledger, posted="2026-10") == closed
    assert imbalance(ledger) == 0

    alone = ledger_with(name="alone")
    priced(alone, 2_000_000, 0)
    alone.insert(first)
    roll(alone, LATE)
    close(alone, "2026-10", 2_000_000)
    alone.insert(late)
    roll(alone, LATE)
    assert rows(ledger) == rows(alone)


@pytest.mark.parametrize("change", ["weights", "a price"])
def test_what_changes_while_an_hour_is_first_computed_is_not_lost(ledger, change):
    """The hour has no whole yet by which it could be found: only its mark."""
    priced(ledger, 1, 0)
    ledger.insert([used("a", length=HALF)])
    found = rollup._compute(ledger, LATE, None, None)
    if change == "weights":
        add_calibration(
            ledger, gpu_type="H100", base_model="base", engine_version="1", valid_from=OCTOBER,
            weights_ps=dict.fromkeys(TERMS, 1), document={}, now=LATE,
        )  # fmt: skip
    else:
        price(ledger, "H100", "2", OCTOBER + HALF // 2, now=LATE)
    with ledger.write() as connection:
        rollup._post(connection, found, LATE, [])
    roll(ledger, LATE)
    if change == "weights":
        assert whole(ledger)["calibration"] != 0
    else:
        pieces = [(OCTOBER,), (OCTOBER + HALF // 2,)]
        assert rows(ledger, "piece", bucket="usage") == pieces
