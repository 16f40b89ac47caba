"""What the watch does when a comparison with the ledger fails midway."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import Share
from gateway.tenants.directory import Directory, Tenant, dump
from gateway.tenants.limits.budget_watch import QUIET_SECONDS, SOON_SECONDS, BudgetWatch
from gateway.tenants.terms import Budget

NAMES = ("acme", "bolt", "corgi")
NOTHING = Share((0,), 0, (0,), (0,), (0,), (0,), 0, 0, wanted=False, due=())


class Store:
    async def looks(self, part: list[object]) -> list[Share]:
        return [replace(NOTHING) for _ in part]


class Metrics:
    def budget_used(self, *_: object) -> None: ...


class FailingWatch(BudgetWatch):
    """Its second comparison fails."""

    compared: list[str]

    async def compare(self, subject: str, _: object) -> None:
        self.compared.append(subject)
        if len(self.compared) == 2:
            raise StoreUnavailableError("away")


async def test_a_comparison_that_fails_midway_corrects_nobody_twice():
    directory, clock = Directory(), [1_000.0]
    tenants = (Tenant(name, base_access=False, created=0, budget=Budget(tokens_per_day=9)) for name in NAMES)
    directory.load({"tenant": {tenant.name: dump(tenant) for tenant in tenants}})
    watch = FailingWatch(Store(), directory, Metrics(), None, None, directory._clock, clock=lambda: clock[0])
    watch.compared = []
    await watch.look()
    clock[0] += QUIET_SECONDS
    await watch.look()
    assert watch.compared == []
    clock[0] += SOON_SECONDS
    with pytest.raises(StoreUnavailableError):
        await watch.look()
    for _ in range(3):
        clock[0] += 5
        with contextlib.suppress(StoreUnavailableError):
            await watch.look()
    assert sorted(watch.compared) == [f"tenant:{name}" for name in NAMES]
