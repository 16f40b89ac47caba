"""A server that fails over to a replica that was behind: what was used of budgets is again the ledger's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.store.redis import RedisStore
from gateway.tenants.directory import Directory, Tenant, dump
from gateway.tenants.limits.allowances import Consumer
from gateway.tenants.limits.budget_watch import QUIET_SECONDS, SOON_SECONDS, BudgetWatch
from gateway.tenants.terms import Budget, Measure
from tests.contract.test_limits import Worker
from tests.support.engine_hosts import free_port
from tests.support.flows import Place, amounts, flows_at, limits
from tests.support.valkey_servers import DATA, _raw, ask, eventually, servers
from tests.support.waiting import PATIENCE_S

SUBJECT = "tenant:acme"
DAY = limits(tokens_per_day=1_000)
NOW = 1_795_000_000_000
"""Milliseconds: no share lapses, and no day ends, while a test runs."""


class Failover:
    """A primary and its replica, which is cut off and promoted. Mutable: where the store is."""

    def __init__(self, primary: int, replica: int) -> None:
        self.primary, self.replica = primary, replica
        self.store = self._open(primary)

    @staticmethod
    def _open(port: int) -> RedisStore:
        return RedisStore(f"redis://127.0.0.1:{port}", prefix="lost", clock=lambda: NOW, timeout=PATIENCE_S)

    def cut_off(self) -> None:
        """The replica has all until now, and nothing after it."""
        with_it = "INFO", "replication"
        eventually(lambda: _offset(_raw(self.primary, *with_it)) == _offset(_raw(self.replica, *with_it)))
        ask(self.replica, "REPLICAOF", "NO", "ONE")

    async def fail_over(self, *workers: Worker) -> None:
        await self.store.close()
        self.store = self._open(self.replica)
        for worker in workers:
            worker.store = self.store

    async def used(self) -> int:
        [share] = await self.store.looks([(SUBJECT, flows_at(NOW), DAY)])
        return share.used[Place.TOKENS_PER_DAY]

    async def seed(self, tokens: int) -> None:
        flow = flows_at(NOW)[Place.TOKENS_PER_DAY]
        await self.store.seed(SUBJECT, [flow], [tokens])


def _offset(info: bytes) -> bytes:
    return info.partition(b"master_repl_offset:")[2].split()[0]


@asynccontextmanager
async def failing_over(directory: Path) -> AsyncIterator[Failover]:
    with servers(directory) as running:
        primary = running.start(*DATA)
        eventually(lambda: ask(primary, "PING"))
        replica = running.start(*DATA, "--replicaof", f"127.0.0.1 {primary}", port=free_port())
        eventually(lambda: b"master_link_status:up" in _raw(replica, "INFO", "replication"))
        made = Failover(primary, replica)
        try:
            yield made
        finally:
            await made.store.close()


class Watch:
    """A watch on its own clock. Mutable: the clock, and what the ledger says."""

    def __init__(self, failover: Failover) -> None:
        self.time, self.ledger, self.failover = 1_000.0, 0, failover
        directory = Directory()
        acme = Tenant("acme", base_access=False, created=0, budget=Budget(tokens_per_day=1_000))
        directory.load({"tenant": {"acme": dump(acme)}})

        async def used(_consumer: Consumer, _start: int, _end: int) -> dict[Measure, int]:
            return {Measure.TOKENS: self.ledger}

        async def post(_body: object) -> bool:
            return True

        class Metrics:
            def budget_used(self, *_: object) -> None: ...

        self.watch = BudgetWatch(
            failover.store,
            directory,
            Metrics(),
            used,
            post,
            lambda: NOW * 1000,
            clock=lambda: self.time,
        )

    async def look(self, *, after: float = 0.0) -> None:
        self.time += after
        self.watch.store = self.failover.store
        await self.watch.look()


async def spend(worker: Worker, tokens: int) -> None:
    await worker.take(tokens_per_day=tokens)
    worker.spent = amounts(tokens_per_day=worker.spent[Place.TOKENS_PER_DAY] + tokens)
    await worker.ask()


@pytest.mark.parametrize("alive", [False, True], ids=["its worker is gone", "its worker goes on"])
async def test_what_a_failover_lost_of_a_budget_is_the_ledgers_again(tmp_path: Path, *, alive: bool, caplog):
    async with failing_over(tmp_path) as failover:
        worker, watch = Worker(failover.store, "w1", DAY), Watch(failover)
        await failover.seed(0)
        await spend(worker, 100)
        await watch.look()
        failover.cut_off()
        await spend(worker, 300)
        watch.ledger = 400
        await watch.look()
        assert await failover.used() == 400
        await failover.fail_over(worker)
        assert await failover.used() == 100  # so much could be spent again
        await watch.look()
        assert "Redis has forgotten what was used of budgets" in caplog.text
        if alive:  # it reports what it has spent in all
            await worker.ask()
            assert await failover.used() == 400
        await watch.look(after=QUIET_SECONDS)
        await watch.look(after=SOON_SECONDS)
        assert await failover.used() == 400
        caplog.clear()
        await watch.look(after=5)
        assert not caplog.text  # it is no fall that nothing changes


async def test_a_budget_that_a_failover_lost_as_a_whole(tmp_path: Path):
    async with failing_over(tmp_path) as failover:
        failover.cut_off()
        worker, watch = Worker(failover.store, "w1", DAY), Watch(failover)
        await failover.seed(0)
        await spend(worker, 300)
        await watch.look()
        await failover.fail_over(worker)
        await watch.look()
        # The next request has it seeded from the ledger, which does not have the last records yet.
        await failover.seed(200)
        watch.ledger = 300
        await watch.look(after=QUIET_SECONDS)
        await watch.look(after=SOON_SECONDS)
        assert await failover.used() == 300
