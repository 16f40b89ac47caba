"""Who gives way to whom when gateways of one Redis have different ledgers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from adapters.store.protocol.coordination import CoordinationStore
from gateway.config import SettingsError
from gateway.observability.gateway_name import GatewayName
from gateway.observability.process_metrics import ProcessValues
from gateway.runtime import gateways
from gateway.runtime.gateways import Gateways, announcement
from gateway.runtime.worker_watch import WorkerWatch
from tests.doubles.memory_store import MemoryStore
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(gateways, name, 0.01)


def made(
    store: CoordinationStore, name: str, ledger: str, *, started: int = 0, values: ProcessValues | None = None
) -> Gateways:
    own = announcement(GatewayName(name, started), workers=2, ledger_url="sqlite:///x", redis_url="redis://x")
    return Gateways(store, own, lambda: ledger, values, lambda: time.time_ns() // 1000)


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def first(store: MemoryStore) -> Iterator[Gateways]:
    """One that runs, with ledger A."""
    found = made(store, "first", "A")
    await found.start(separate_ledgers=False)
    running = asyncio.create_task(found.run())
    yield found
    running.cancel()


@pytest.mark.parametrize("ledger", ["A", ""], ids=["the same ledger", "a ledger that does not answer"])
async def test_a_second_one_starts_with(store: MemoryStore, first: Gateways, ledger: str):
    second = made(store, "second", ledger)
    await second.start(separate_ledgers=False)
    assert [one.name for one in second.all] == ["second", "first"]
    assert (list(second.conditions()), second.missing) == ([], "")


async def test_one_with_another_ledger_is_refused_and_both_are_named(store: MemoryStore, first: Gateways):
    second = made(store, "second", "B")
    with pytest.raises(
        SettingsError, match=r"^FLORIN_LEDGER_URL: Gateway first .*FLORIN_SEPARATE_LEDGERS"
    ) as refused:
        await second.start(separate_ledgers=False)
    assert "(A)" in str(refused.value)
    assert "(B)" in str(refused.value)
    await second.leave()
    await until(lambda: not first.missing and len(first.all) == 1)


async def test_told_otherwise_it_starts_and_both_say_so(store: MemoryStore, first: Gateways, caplog):
    second = made(store, "second", "B")
    await second.start(separate_ledgers=True)
    await until(lambda: [c.code for c in first.conditions()] == ["ledgers_differ"])
    assert [c.subject for c in second.conditions()] == ["first"]
    assert first.missing == second.missing != ""
    await until(lambda: "Gateway second keeps its usage records in" in caplog.text)
    caplog.clear()
    caplog.set_level("INFO")
    await second.leave()
    await until(lambda: "one ledger again" in caplog.text)


async def test_it_waits_for_one_that_was_killed(store: MemoryStore):
    killed = made(store, "killed", "A")
    await killed.start(separate_ledgers=False)
    second = made(store, "second", "B")
    start = asyncio.create_task(second.start(separate_ledgers=False))
    await until(lambda: [one.name for one in second.all] == ["second", "killed"])
    await killed.leave()  # as its announcement expires
    await start
    assert [one.name for one in second.all] == ["second"]


class Together(MemoryStore):
    """Both have announced themselves before either looks for the other."""

    def __init__(self) -> None:
        super().__init__()
        self._both, self._looks = asyncio.Barrier(2), 0

    async def announced(self) -> dict[str, str]:
        self._looks += 1
        if self._looks <= 2:
            await self._both.wait()
        return await super().announced()


async def test_of_two_that_start_together_one_gives_way():
    store = Together()

    async def life(name: str, ledger: str) -> None:
        one = made(store, name, ledger, started=7)
        await one.start(separate_ledgers=False)
        await one.run()

    two = [asyncio.create_task(life(name, ledger)) for name, ledger in (("b", "B"), ("a", "A"))]
    ended, (living,) = await asyncio.wait(two, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(SettingsError):
        await ended.pop()
    assert living is two[1]
    living.cancel()


async def test_a_worker_that_takes_the_place_of_a_dead_one_starts(store: MemoryStore, first: Gateways):
    watch = WorkerWatch(1)
    watch.crashed(-9)
    second = made(store, "second", "B", values=ProcessValues(watch.values, watch.acquire(), watch.gateway))
    await second.start(separate_ledgers=False)
    assert second.missing
    assert (second.own.restarts, [death.code for death in second.own.deaths]) == (1, [-9])
    watch.close()


async def test_without_redis_it_starts_and_learns_later(store: MemoryStore, first: Gateways):
    second = made(store, "second", "B")
    store.away = True
    await second.start(separate_ledgers=False)
    store.away = False
    running = asyncio.create_task(second.run())
    await until(lambda: second.missing)
    running.cancel()


async def test_announcements_of_other_versions_are_understood_or_passed_over(store: MemoryStore):
    await store.announce(
        "older", '{"name": "older", "announced_at": 1, "started": 1, "later": true}', ttl_ms=60_000
    )
    await store.announce("strange", '["?"]', ttl_ms=60_000)
    found = made(store, "this", "A")
    await found.start(separate_ledgers=False)
    assert [one.name for one in found.all] == ["this", "older"]
