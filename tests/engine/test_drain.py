"""A drain and a roll of real engines under load: no request fails, and each is answered by its adapter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import pytest

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import loaded
from tests.support.harness import OPERATOR_KEY, Gateway
from tests.support.waiting import until

CUSTOMERS = ("acme", "bolt")


@contextlib.asynccontextmanager
async def under_load(gateway: Gateway, model: DemoModel) -> AsyncIterator[list[str]]:
    """Streams of two customers, two at a time each; yields the engines that answered. A request that fails,
    or is not answered by its adapter, fails the test."""
    engines: list[str] = []
    over = asyncio.Event()

    async def call(tenant: str) -> None:
        async with gateway.client(tenant, timeout=120) as client:
            while not over.is_set():
                question = model.questions[len(engines) % len(model.questions)]
                raw = await client.chat.completions.with_raw_response.create(
                    model="support", messages=[{"role": "user", "content": question}], stream=True,
                    temperature=0, max_tokens=200,
                )  # fmt: skip
                chunks = [chunk async for chunk in raw.parse()]
                text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
                assert text == model.adapters[tenant].answers[question]
                engines.append(raw.headers["x-florin-engine"])

    calls = [asyncio.create_task(call(tenant)) for tenant in CUSTOMERS * 2]
    try:
        await until(lambda: len(engines) >= 8, 120)
        yield engines
        served = len(engines)
        await until(lambda: len(engines) >= served + 8 or any(c.done() for c in calls), 120)
    finally:
        over.set()
        await asyncio.gather(*calls)


async def florin(gateway: Gateway, *words: str) -> asyncio.subprocess.Process:
    environ = {**os.environ, "FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "engine", *words,
        env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.timeout(900)  # an engine is restarted; tests/integration/test_drain.py rolls several
async def test_a_drain_and_a_roll_under_load_fail_no_request(
    gateway: Gateway, repaired_fleet: Fleet, demo_model: DemoModel
):
    async with under_load(gateway, demo_model) as engines:
        drain = await florin(gateway, "drain", "e1", "--wait", "--timeout", "120")
        said, notes = await drain.communicate()
        assert drain.returncode == 0, notes
        assert b"Engine e1 is drained" in said
        assert loaded(repaired_fleet.engines[1].url) == []
        before = len(engines)
        await until(lambda: len(engines) >= before + 8, 120)
        assert set(engines[before:]) == {"e0"}
        await gateway.set_state("e1", "active")

        roll = await florin(gateway, "roll", "e0", "--wait-for-restart", "--timeout", "180")
        assert roll.stderr is not None
        async for line in roll.stderr:  # as an operator does who is asked to
            for engine in repaired_fleet.engines:
                if line.startswith(f"Restart engine e{engine.index} ".encode()):
                    await asyncio.to_thread(repaired_fleet.restart, engine.index)
        assert await roll.wait() == 0
        assert roll.stdout is not None
        assert b"1 engine restarted" in await roll.stdout.read()
    records = [record for tenant in CUSTOMERS for record in await gateway.usage(tenant)]
    assert {record.outcome for record in records} == {"ok"}
