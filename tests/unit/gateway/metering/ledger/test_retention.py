from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from gateway.metering.ledger import retention
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.engine_hours import mark_dirty, pruned_before
from gateway.metering.ledger.ledger import Inserted, Ledger
from gateway.metering.ledger.quarantine import quarantined
from gateway.metering.ledger.retention import Pruned, prune
from gateway.metering.ledger.schema import (
    dirty_hours,
    engine_probes,
    ledger_state,
    periods,
)
from gateway.units import HOUR
from tests.unit.gateway.metering.make import record


def at(year, month, day=1, hour=0):
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * 1_000_000


NOW = at(2026, 6, 15)


def close(ledger, month, *, cutoff=None):
    """What closing a month leaves, as far as it matters here."""
    with ledger.write() as connection:
        batch = connection.execute(
            select(ledger_state.c.value).where(ledger_state.c.name == "batch")
        ).scalar()
        connection.execute(
            periods.insert(),
            {
                "month": month,
                "state": "closed",
                "first_batch": 0,
                "cutoff_batch": batch if cutoff is None else cutoff,
                "closing_at": 0,
                "closed_by": "test",
                "policy": "none",
            },
        )
        seal(connection, "month", month)


def rolled(ledger):
    with ledger.write() as connection:
        connection.execute(dirty_hours.delete())


def in_month(name, year, month, **changes):
    start = at(year, month, 10)
    return record(name, dispatched=start, ended=start + 5, **changes)


def kept(ledger):
    return {r.request_id for r in ledger.usage(start=0, end=2**62)}


@pytest.fixture
def months(ledger: Ledger) -> Ledger:
    """January to April, the first three closed, everything rolled up."""
    ledger.insert([in_month(f"m{m}", 2026, m) for m in (1, 2, 3, 4)])
    for month in ("2026-01", "2026-02", "2026-03"):
        close(ledger, month)
    rolled(ledger)
    return ledger


def test_only_closed_months_beyond_the_retention_go(months):
    assert prune(months, NOW, 0) == Pruned(0, more=False)
    assert kept(months) == {"m1", "m2", "m3", "m4"}
    assert prune(months, NOW, 90) == Pruned(2, more=False)  # until 17 March
    assert kept(months) == {"m3", "m4"}
    assert prune(months, NOW, 30) == Pruned(1, more=False)  # April is old enough, but not closed
    assert kept(months) == {"m4"}
    with months.read() as connection:
        assert pruned_before(connection) == at(2026, 4)
        assert set(connection.execute(select(periods.c.month)).scalars()) == {"2026-01", "2026-02", "2026-03"}


def test_an_open_month_keeps_itself_and_the_later_ones(ledger):
    ledger.insert([in_month("m1", 2026, 1), in_month("m2", 2026, 2)])
    close(ledger, "2026-02")
    rolled(ledger)
    assert prune(ledger, NOW, 1) == Pruned(0, more=False)


def test_nothing_goes_that_waits_to_be_rolled_up(months):
    with months.write() as connection:
        mark_dirty(connection, [(at(2026, 1, 3), "gpu-a", "H100", 1)])
    assert prune(months, NOW, 30) == Pruned(0, more=False)
    rolled(months)
    assert prune(months, NOW, 30).records == 3


def test_few_at_a_time(ledger):
    assert prune(ledger, NOW, 30) == Pruned(0, more=False)  # an empty ledger
    ledger.insert([in_month(f"r{i}", 2026, 1) for i in range(25)])
    close(ledger, "2026-01")
    rolled(ledger)
    assert prune(ledger, NOW, 30, most=10) == Pruned(10, more=True)
    assert len(kept(ledger)) == 15
    assert prune(ledger, NOW, 30, most=100) == Pruned(15, more=False)


def test_what_comes_afterwards_goes_to_quarantine_and_marks_nothing(months):
    prune(months, NOW, 90)
    again, late, edge = in_month("m1", 2026, 1), in_month("late", 2026, 2), in_month("new", 2026, 3)
    assert months.insert([again, late, edge]) == Inserted(new=1, quarantined=2)
    assert months.insert([again]) == Inserted(quarantined=1)
    assert kept(months) == {"m3", "m4", "new"}
    found = quarantined(months)
    assert {(q.record["request_id"], q.reason) for q in found} == {("m1", "pruned"), ("late", "pruned")}
    assert len(quarantined(months, limit=1)) == 1
    with months.read() as connection:
        hours = connection.execute(select(dirty_hours.c.hour)).scalars().all()
    assert hours == [edge.ended // HOUR * HOUR]


def test_hours_without_their_records_cannot_be_marked(months):
    prune(months, NOW, 90)
    with months.write() as connection:
        pool = ("gpu-a", "H100", 1)
        mark_dirty(connection, [(at(2026, 3) - HOUR, *pool), (at(2026, 3), *pool)])
    with months.read() as connection:
        assert connection.execute(select(dirty_hours.c.hour)).scalars().all() == [at(2026, 3)]


def test_a_late_record_is_kept_as_long_as_the_period_that_it_counts_in(ledger):
    ledger.insert([in_month("m1", 2026, 1), in_month("m4", 2026, 4)])
    close(ledger, "2026-01")
    ledger.insert([in_month("late", 2026, 1)])  # posted to the month that is open now
    rolled(ledger)
    assert prune(ledger, NOW, 30) == Pruned(1, more=False)
    assert kept(ledger) == {"late", "m4"}
    assert ledger.insert([in_month("late", 2026, 1)]) == Inserted(duplicate=1)  # it is known, not too old
    for month in ("2026-02", "2026-03", "2026-04"):
        close(ledger, month)
    assert prune(ledger, NOW, 30) == Pruned(2, more=False)
    assert kept(ledger) == set()


def test_an_attempt_that_ran_across_the_end_is_kept(ledger):
    turn = at(2026, 2)
    ledger.insert(
        [record("long", dispatched=turn - 5, ended=turn), record("in", dispatched=turn - 9, ended=turn - 1)]
    )
    close(ledger, "2026-01")
    rolled(ledger)
    assert prune(ledger, NOW, 30).records == 1
    assert kept(ledger) == {"long"}


def test_a_call_that_finds_nothing_writes_nothing(months):
    def batch():
        with months.read() as connection:
            return connection.scalar(select(ledger_state.c.value).where(ledger_state.c.name == "batch"))

    prune(months, NOW, 90)
    before = batch()
    assert prune(months, NOW, 90) == Pruned(0, more=False)
    assert batch() == before


def test_a_removal_that_was_interrupted_is_finished(months, monkeypatch):
    removed = []

    def stumble(*arguments):
        if removed:
            raise OSError("the power went")
        removed.append(1)
        return remove(*arguments)

    remove = retention._remove
    monkeypatch.setattr(retention, "_ROWS", 1)
    monkeypatch.setattr(retention, "_remove", stumble)
    with pytest.raises(LedgerUnavailableError):
        prune(months, NOW, 90)
    assert kept(months) == {"m2", "m3", "m4"}
    monkeypatch.undo()
    prune(months, NOW, 90)
    assert kept(months) == {"m3", "m4"}


def test_florins_own_probes_go_with_the_records_of_their_time(months):
    with months.write() as connection:
        for month in (1, 2, 3):
            row = {"id": f"p{month}", "engine": "a", "at": at(2026, month, 20)}
            tokens = {"prompt_tokens": 70, "cached_tokens": 0, "completion_tokens": 32}
            connection.execute(engine_probes.insert(), row | tokens)
    prune(months, NOW, 90)
    with months.read() as connection:
        assert connection.execute(select(engine_probes.c.id)).scalars().all() == ["p3"]
