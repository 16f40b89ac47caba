"""The disk of the usage log is full, as a client, a load balancer and the engines see it."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import NoReturn

import httpx
import openai
import pytest

from loadtests.mock_engine import MockEngine
from tests.harness import Gateway, fake_adapter, running_gateway
from tests.integration.test_data_plane import HELLO


async def ask(gateway: Gateway) -> None:
    async with gateway.client("acme") as client:
        await client.chat.completions.create(model="support", messages=HELLO)


async def ready(gateway: Gateway) -> int:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
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
        deadline = time.monotonic() + 10
        while await ready(gateway) != 200 or not gateway.state.meter.accepting:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await ask(gateway)
        async with asyncio.timeout(10):
            while len(found := await gateway.usage("acme")) < 5:
                await asyncio.sleep(0.05)
    outcomes = [r.outcome for r in found]
    assert outcomes == (["ok"] * 5 if policy == "serve" else ["ok", *["rejected"] * 3, "ok"])
    assert {r.prompt_tokens for r in found if r.outcome == "rejected"} <= {0}
