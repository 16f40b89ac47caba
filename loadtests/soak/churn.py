"""Simulates operators during the run: they register versions, promote, roll back, retire, pin, cordon."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from deploy.demo.gateway import GatewayError
from loadtests.chaos.world import ChaosCluster

EVERY_S = 3.0
KEPT = 2
"""Unretired versions of an adapter besides the live one."""


class Churn:
    """Mutable: counts of changes and refusals."""

    def __init__(self, world: ChaosCluster, draw: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._world = world
        self._draw = draw
        self._numbers: Counter[str] = Counter()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        steps = [self._new_version, self._promote, self._roll_back, self._cordon]
        while not self._stopping.is_set():
            step = self._draw.choice(steps)
            name = step.__name__.strip("_")
            try:
                await step(self._draw.choice(self._world.engines.tenants))
                self.done[name] += 1
            except GatewayError as error:
                self.refused[f"{name}: {_code(str(error))}"] += 1
            try:
                await asyncio.wait_for(self._stopping.wait(), EVERY_S)
            except TimeoutError:
                continue

    async def _call(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        house = self._draw.choice(self._world.houses)
        answer: dict[str, object] = await house.call(method, f"/admin/v1/{path}", body)
        return answer

    async def _new_version(self, tenant: str) -> None:
        """Register a version and retire the oldest."""
        self._numbers[tenant] += 1
        source = str(self._world.engines.source(tenant, self._numbers[tenant] + 1))
        await self._call("POST", "adapters", {"adapter": f"{tenant}/support", "source": source})
        shown = await self._call("GET", f"adapters/{tenant}/support")
        versions = shown["versions"]
        assert isinstance(versions, list)
        idle = [version for version in versions if version != shown["live"]]
        for version in idle[:-KEPT]:
            await self._call("POST", f"adapters/{tenant}/support/versions/{version}/retire")

    async def _promote(self, tenant: str) -> None:
        shown = await self._call("GET", f"adapters/{tenant}/support")
        versions = shown["versions"]
        assert isinstance(versions, list)
        await self._call("PUT", f"adapters/{tenant}/support/live", {"version": versions[-1]})

    async def _roll_back(self, tenant: str) -> None:
        await self._call("POST", f"adapters/{tenant}/support/rollback")

    async def _cordon(self, tenant: str) -> None:
        del tenant
        name = f"e{self._draw.randrange(len(self._world.proxies))}"
        await self._call("PUT", f"engines/{name}/state", {"state": "cordoned"})
        await self._call("PUT", f"engines/{name}/state", {"state": "active"})


def _code(message: str) -> str:
    _, marker, rest = message.partition('"code":"')
    return rest.partition('"')[0] if marker else message[:60]
