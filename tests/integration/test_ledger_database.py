"""Many who write at once, and a server that dies under them."""

import multiprocessing
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, ledger_state, usage_records
from gateway.units import HOUR
from tests.support.waiting import until_now
from tests.unit.gateway.metering.make import record

RECORDS = 240


def records():
    return [
        record(
            f"r{i}", engine=f"gpu-{i % 3}", dispatched=(100 + i % 7) * HOUR, ended=(100 + i % 7) * HOUR + i
        )
        for i in range(RECORDS)
    ]


def insert_surely(ledger, batch):
    """As the shipper does: until it is in."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ledger.insert(batch)
        except LedgerUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def ship_in_disorder(url, seed):
    """One worker of several that all ship the same records, in their own order and portions."""
    ledger = Ledger(url)

    def ship(number):
        mine = records()
        dice = random.Random(seed * 10 + number)
        dice.shuffle(mine)
        while mine:
            batch = [mine.pop() for _ in range(min(len(mine), dice.randint(1, 40)))]
            insert_surely(ledger, batch)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ship, range(2)))
    ledger.close()


def counts(ledger):
    """The last number given, and records by batch: one state."""
    with ledger.read() as connection:
        last = connection.execute(select(ledger_state.c.value).where(ledger_state.c.name == "batch")).scalar()
        held = {}
        for batch in connection.execute(select(usage_records.c.batch)).scalars():
            held[batch] = held.get(batch, 0) + 1
    return last or 0, held


def test_workers_that_ship_the_same_records_at_once(ledger_url, ledger):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=ship_in_disorder, args=(ledger_url, seed)) for seed in range(2)]
    for worker in workers:
        worker.start()
    seen = []
    while any(worker.is_alive() for worker in workers):
        seen.append(counts(ledger))
        time.sleep(0.01)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    last, held = counts(ledger)
    assert sum(held.values()) == RECORDS
    # What a batch number covered once, it covers for ever: closed periods are made of this.
    for then, had in seen:
        assert had == {batch: n for batch, n in held.items() if batch <= then}
    assert max(held) <= last
    with ledger.read() as connection:
        marked = {tuple(row)[:4] for row in connection.execute(select(dirty_hours))}
    assert marked == {(r.ended // HOUR * HOUR, r.engine, r.gpu_type, r.gpu_count) for r in records()}


@pytest.fixture
def on_postgres(postgres, postgres_template):
    """A ledger on a server that a test may treat badly; it answers again afterwards."""
    with postgres.database(postgres_template) as url:
        ledger = Ledger(url)
        insert_surely(ledger, [record("before")])
        yield ledger
        ledger.close()
        postgres.wait()


def test_a_connection_cut_in_the_middle_of_a_transaction(on_postgres):
    def cut_off():
        with on_postgres.write() as connection:
            connection.execute(text("DELETE FROM usage_records"))
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
            os.kill(pid, signal.SIGKILL)  # the server then restarts itself, and cuts everybody

    before = counts(on_postgres)
    with pytest.raises(LedgerUnavailableError):
        cut_off()
    assert insert_surely(on_postgres, [record("before"), record("a")]).new == 1
    last, held = counts(on_postgres)
    assert held == {**before[1], last: 1}


def test_a_connection_to_a_server_that_no_longer_accepts_writes_is_left(on_postgres, postgres):
    """As to a primary that has become a standby: it answers pings, so it would stay in the pool."""
    with on_postgres.read() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar()
    on_postgres.close()
    with postgres.connect() as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        for number in range(2):
            with pytest.raises(LedgerUnavailableError, match="read-only"):
                on_postgres.insert([record(f"refused-{number}")])
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert on_postgres.insert([record("a")]).new == 1


def test_a_server_that_dies_while_many_ship(on_postgres, postgres):
    stop = threading.Event()
    new = []

    def ship(number):
        made = iter(range(10_000))
        while not stop.is_set():
            new.append((insert_surely(on_postgres, batch := [record(f"{number}-{next(made)}")]), batch))

    threads = [threading.Thread(target=ship, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    until_now(lambda: len(new) >= 20)
    postgres.kill()
    with pytest.raises(LedgerUnavailableError):
        on_postgres.insert([record("nobody there")])
    postgres.start()
    after = len(new)
    until_now(lambda: len(new) >= after + 20)
    stop.set()
    for thread in threads:
        thread.join()
    kept = {r.request_id for r in on_postgres.usage(start=0, end=2**62, limit=100_000)}
    # Whose commit was not heard of is shipped again: then it is a duplicate, never a second record.
    assert kept == {"before", *(batch[0].request_id for _, batch in new)}
    last, held = counts(on_postgres)
    assert max(held) <= last
    assert all(n == 1 for n in held.values())
