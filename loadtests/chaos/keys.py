"""An operator who creates keys during the run and checks at the end that they still work."""

from __future__ import annotations

import asyncio
import random
import time

import httpx2

from deploy.demo.gateway import GatewayError
from loadtests.chaos.world import ChaosCluster

EVERY_S = 1.0


class Locksmith:
    """Creates keys. Mutable: the acknowledged keys with their request times, CLOCK_MONOTONIC seconds."""

    def __init__(self, world: ChaosCluster, draw: random.Random) -> None:
        self.made: dict[str, float] = {}
        self._world = world
        self._draw = draw
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Create keys until `stop`. Keys that are not acknowledged do not count."""
        while not self._stopping.is_set():
            house = self._draw.choice(self._world.houses)
            body = {"tenant": self._draw.choice(self._world.hot), "role": "tenant"}
            created_at = time.monotonic()
            try:
                key = await house.call("POST", "/admin/v1/keys", body)
                self.made[key["key"]] = created_at
            except GatewayError:
                pass
            try:
                await asyncio.wait_for(self._stopping.wait(), EVERY_S)
            except TimeoutError:
                continue

    async def refused(self) -> dict[str, float]:
        """Keys that a gateway refuses, by their prefixes."""
        refused = {}
        async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
            for key, created_at in self.made.items():
                for house in self._world.houses:
                    headers = {"authorization": f"Bearer {key}"}
                    answer = await client.get(f"{house.url}/v1/models", headers=headers)
                    if answer.status_code != httpx2.codes.OK:
                        refused[key[:15]] = created_at
        return refused
