"""The disk of the usage log is full, or slow, as a client, a load balancer and the engines see it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import time
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import openai
import pytest

from gateway.metering import meter
from loadtests.mock_engine import MockEngine
from tests.integration.test_data_plane import HELLO
from tests.support.alerting import fires, silent
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until


async def ask(gateway: Gateway) -> None:
    async with gateway.client("acme") as client:
        await client.chat.completions.create(model="support", messages=HELLO)


async def recorded(gateway: Gateway, count: int) -> list[Any]:
    """The ledger's records, once there are so many."""

    async def enough() -> list[Any]:
        found = await gateway.usage("acme")
        return found if len(found) >= count else []

    return await until(enough)


async def ready(gateway: Gateway) -> int:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=30) as http:
        return (await http.get("/readyz")).status_code


def full(file: int, data: bytes) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("policy", ["refuse", "serve"])
async def test_the_setting_decides_and_nothing_is_lost(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch, policy: str
):
    state = tmp_path / "state"
    async with (
        MockEngine() as engine,
        running_gateway(state, valkey_url, prefix, wal_full=policy) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "adapter"))
        await ask(gateway)
        with monkeypatch.context() as disk:
            disk.setattr(os, "write", full)
            for _ in range(3):
                if policy == "serve":
                    await ask(gateway)
                    continue
                with pytest.raises(openai.InternalServerError) as caught:
                    await ask(gateway)
                assert (caught.value.status_code, caught.value.code) == (503, "metering_unavailable")
                assert caught.value.response.headers["retry-after"]
            assert await ready(gateway) == (200 if policy == "serve" else 503)
        assert len(engine.state.calls) == (4 if policy == "serve" else 1)

        async def back() -> bool:
            return await ready(gateway) == 200 and gateway.state.meter.accepting

        await until(back)
        await ask(gateway)
        found = await recorded(gateway, 5)
    outcomes = [r.outcome for r in found]
    assert outcomes == (["ok"] * 5 if policy == "serve" else ["ok", *["rejected"] * 3, "ok"])
    assert {r.prompt_tokens for r in found if r.outcome == "rejected"} <= {0}


async def test_a_slow_disk_delays_requests_and_is_told(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    """No file system of this machine is slow to order: its sync is."""
    state = tmp_path / "state"
    async with MockEngine() as engine, running_gateway(state, valkey_url, prefix) as gateway:
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "adapter"))
        await ask(gateway)
        async with gateway.http() as http:
            before = (await http.get("/metrics")).text
            assert "usage_unrecorded" not in (await http.get("/readyz")).json()["conditions"]
            syncs, sync = 0, os.fdatasync

            def slow(file: int) -> None:
                nonlocal syncs
                syncs += 1
                time.sleep(1.5)
                sync(file)

            monkeypatch.setattr(os, "fdatasync", slow)
            while syncs < 3:  # of which two are over
                await ask(gateway)
            during = (await http.get("/metrics")).text
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["conditions"]) == (200, ["disk_slow"])
            monkeypatch.undo()
            answered = len(engine.state.calls)
            await recorded(gateway, answered)
    assert silent("FlorinDiskSlow", before, tmp_path)
    assert fires("FlorinDiskSlow", before, during, tmp_path)


async def test_a_ledger_that_is_away_is_told(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    """Another program has locked the SQLite ledger; PostgreSQL that is away looks the same from here."""
    monkeypatch.setattr(meter, "_BEHIND", 0.5)
    state = tmp_path / "state"
    async with MockEngine() as engine, running_gateway(state, valkey_url, prefix) as gateway:
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "adapter"))
        await ask(gateway)
        assert len(await gateway.usage("acme")) == 1
        async with gateway.http() as http:
            before = (await http.get("/metrics")).text
            with contextlib.closing(sqlite3.connect(state / "ledger.db", isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                await ask(gateway)

                async def waits() -> float:
                    text = (await http.get("/metrics")).text
                    return float(text.split("\nflorin_wal_oldest_seconds ")[1].split("\n")[0])

                async with asyncio.timeout(60):
                    while not await waits():
                        await asyncio.sleep(0.05)
                async with asyncio.timeout(60):
                    while "ledger_behind" not in [c.code for c in gateway.state.conditions.now()]:
                        await asyncio.sleep(0.05)
                answer = await http.get("/readyz")
                assert answer.status_code == 200
                assert "ledger_behind" in answer.json()["conditions"]
                await ask(gateway)
                during = (await http.get("/metrics")).text
                other.execute("ROLLBACK")
            await recorded(gateway, 3)
            async with asyncio.timeout(60):
                while await waits():
                    await asyncio.sleep(0.05)
    assert silent("FlorinUsageNotShipped", before, tmp_path)
    # The incident of seconds, as it would stand after six minutes.
    [line] = [x for x in during.splitlines() if x.startswith("florin_wal_oldest_seconds ")]
    assert fires("FlorinUsageNotShipped", before, during.replace(line, f"{line.split()[0]} 360"), tmp_path)
