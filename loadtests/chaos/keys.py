"""An operator at work meanwhile: makes keys, and looks at the end whether they are still there."""

from __future__ import annotations

import asyncio
import random
import time

import httpx

from deploy.demo.gateway import GatewayError
from loadtests.chaos.world import ChaosCluster

EVERY_S = 1.0


class Locksmith:
    """Mutable: the keys that were acknowledged, with when they were asked for, CLOCK_MONOTONIC seconds."""

    def __init__(self, world: ChaosCluster, draw: random.Random) -> None:
        self.made: dict[str, float] = {}
        self._world = world
        self._draw = draw
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`. A key that is not acknowledged is no key."""
        while not self._stopping.is_set():
            house = self._draw.choice(self._world.houses)
            body = {"tenant": self._draw.choice(self._world.hot), "role": "tenant"}
            at = time.monotonic()
            try:
                key = await house.call("POST", "/admin/v1/keys", body)
                self.made[key["key"]] = at
            except GatewayError:
                pass
            try:
                await asyncio.wait_for(self._stopping.wait(), EVERY_S)
            except TimeoutError:
                continue

    async def refused(self) -> dict[str, float]:
        """The keys that some gateway does not take, by their beginnings."""
        found = {}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
            for key, made in self.made.items():
                for house in self._world.houses:
                    headers = {"authorization": f"Bearer {key}"}
                    answer = await client.get(f"{house.url}/v1/models", headers=headers)
                    if answer.status_code != httpx.codes.OK:
                        found[key[:15]] = made
        return found
