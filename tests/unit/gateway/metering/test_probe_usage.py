"""What probes cost is in the ledger once, also when the ledger was away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select

from adapters.model import Engine
from adapters.placement.fingerprint import ProbeAnswer
from gateway.metering import probe_usage
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_probes
from gateway.metering.probe_usage import ProbeLog
from tests.support.waiting import until

ENGINE = Engine("a", "http://a", "base", "h100", slots=2, max_rank=8)
ANSWER = ProbeAnswer((), (), prompt_tokens=70, cached_tokens=None, completion_tokens=32)


def rows(ledger: Ledger) -> list[tuple[object, ...]]:
    c = engine_probes.c
    query = select(c.engine, c.at, c.prompt_tokens, c.cached_tokens, c.completion_tokens).order_by(c.at)
    with ledger.read() as connection:
        return [tuple(row) for row in connection.execute(query)]


@pytest.fixture
def log(ledger: Ledger) -> ProbeLog:
    times = iter(range(1, 1_000_000))
    return ProbeLog(ledger, 0.01, clock=lambda: next(times))


def test_each_probe_is_written_once(ledger: Ledger, log: ProbeLog):
    for _ in range(2):
        log.probed(ENGINE, ANSWER)
        assert log.write()
    assert log.write()
    assert rows(ledger) == [("a", 1, 70, 0, 32), ("a", 2, 70, 0, 32)]


def test_a_ledger_that_is_away_loses_nothing(ledger: Ledger, log: ProbeLog, monkeypatch: pytest.MonkeyPatch):
    def away() -> None:
        raise LedgerUnavailableError("gone")

    log.probed(ENGINE, ANSWER)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "write", away)
        assert not log.write()
        log.probed(ENGINE, ANSWER)
    assert log.write()
    assert len(rows(ledger)) == 2


def test_what_waits_is_bounded(log: ProbeLog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe_usage, "_MOST", 3)
    for _ in range(5):
        log.probed(ENGINE, ANSWER)
    assert len(log._rows) == 3


async def test_it_writes_by_itself_and_at_the_end(ledger: Ledger, log: ProbeLog):
    task = asyncio.create_task(log.run())
    log.probed(ENGINE, ANSWER)
    await until(lambda: rows(ledger))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    log.probed(ENGINE, ANSWER)
    await log.close()
    assert len(rows(ledger)) == 2


@pytest.mark.parametrize("wrong", [10**30, "70", None], ids=str)
@pytest.mark.parametrize("field", ["prompt_tokens", "cached_tokens", "completion_tokens"])
def test_counts_that_cannot_be_are_no_cost(ledger: Ledger, log: ProbeLog, field: str, wrong: object):
    if (field, wrong) == ("cached_tokens", None):
        return  # it does not say
    log.probed(ENGINE, replace(ANSWER, **{field: wrong}))
    log.probed(ENGINE, ANSWER)
    assert log.write()
    assert len(rows(ledger)) == 1


def test_a_row_that_no_database_can_hold_holds_up_no_others(ledger: Ledger, log: ProbeLog, caplog):
    for number in range(5):
        log.probed(replace(ENGINE, name=f"e{number}"), ANSWER)
    log._rows[2]["at"] = 10**30
    assert log.write()
    assert [row[0] for row in rows(ledger)] == ["e0", "e1", "e3", "e4"]
    assert log.write()
    assert sum("Dropped" in message for message in caplog.messages) == 1
