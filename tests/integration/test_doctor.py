"""florin doctor against a running gateway, and against what is left of one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal

import httpx2
import pytest
from redis.asyncio import Redis
from typer.testing import Result

from adapters.model import ServingStatus, dump
from adapters.registry.artifacts import ArtifactStore
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask
from tests.support.commands import command
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import until


async def florin(gateway: Gateway | str, *args: str, **options: str) -> Result:
    return await command(gateway, "doctor", *args, **options)


async def doctor(gateway: Gateway | str, **options: str) -> tuple[int, dict[str, dict]]:
    """Exit code; check → its worst entry."""
    done = await florin(gateway, "--json", **options)
    found: dict[str, dict] = {}
    for one in json.loads(done.stdout)["data"]:
        assert set(one) == {"check", "status", "subject", "message", "remedy"}
        found.setdefault(one["check"], one)  # the worst comes first
    return done.exit_code, found


def bad(found: dict[str, dict]) -> set[str]:
    return {check for check, one in found.items() if one["status"] != "ok"}


async def test_healthy_installation(deployment: Deployment):
    await ask(deployment, "acme")
    async with deployment.gateway.http() as client:
        for gpu_type in ("h100", "l40s"):
            price = {"gpu_type": gpu_type, "rate_per_gpu_hour": "2.50"}
            assert (await client.post("/admin/v1/prices", json=price)).status_code == 201
    code, found = await doctor(deployment.gateway)
    # The harness registers adapters without a base config, and of one byte.
    assert (code, bad(found)) == (1, {"base_config", "version_files"}), found
    assert {"redis", "redis_persistence", "redis_memory", "conditions", "ledger"} <= set(found)
    assert {"artifact_dir", "price", "engine"} <= set(found)
    people = await florin(deployment.gateway)
    assert people.exit_code == 1
    assert "PROBLEM" in people.stdout
    assert "ok" in people.stdout


async def test_each_disagreement_is_explained(deployment: Deployment):
    gateway = deployment.gateway
    await gateway.set_state("b", "cordoned")
    await ask(deployment, "acme")
    async with httpx2.AsyncClient(base_url=deployment.a.url) as client:
        body = {"lora_name": "by-hand", "lora_path": str(deployment.tmp / "bolt")}
        (await client.post("/v1/load_lora_adapter", json=body)).raise_for_status()
    serving_status = ServingStatus(
        "quarantined", "bolt/support@v1", "answers_like_base", "It answers like the base.", "a", 1
    )
    await gateway.commit(Change("serving_status", voice(deployment, "bolt/support"), dump(serving_status)))
    shutil.rmtree(deployment.tmp / "corgi")
    code, found = await doctor(gateway)
    assert code == 1
    assert found["residency_stranger"]["subject"] == "a"
    assert "by-hand" in found["residency_stranger"]["message"]
    assert found["version_quarantined"]["subject"] == "bolt/support@v1"
    assert found["version_quarantined"]["status"] == "problem"
    assert found["engine_state"]["subject"] == "b"
    assert found["price"]["status"] == "warning"
    assert "by-hand" in deployment.a.state.adapters
    deployment.a.die()
    code, found = await doctor(gateway)
    assert found["engine_reachable"]["subject"] == "a"


async def test_without_engines_and_adapters_there_is_nothing_wrong_but_much_to_do(gateway: Gateway):
    code, found = await doctor(gateway)
    assert (code, bad(found)) == (0, {"engines"}), found
    assert "florin engine add" in found["engines"]["remedy"]
    people = await florin(gateway)
    assert "0 problems, 1 warning." in people.stderr


async def test_unreachable_or_misconfigured_redis(tmp_path):
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with running_gateway(tmp_path / "state", valkey.url, "florin") as gateway:
            async with Redis.from_url(valkey.url) as redis:
                await redis.config_set("appendonly", "no")
                await redis.config_set("maxmemory-policy", "allkeys-lru")
            code, found = await doctor(gateway)
            assert code == 1
            assert found["redis_persistence"]["status"] == "problem"
            assert "appendonly yes" in found["redis_persistence"]["remedy"]
            assert found["redis_memory"]["status"] == "warning"
            os.kill(valkey.pid, signal.SIGKILL)
            await until(lambda: not gateway.state.follower.connected)
            code, found = await doctor(gateway)
            assert code == 1
            assert found["redis"]["status"] == "problem"
            assert "FLORIN_REDIS_URL" in found["redis"]["remedy"]
            await asyncio.to_thread(valkey.start)


async def test_a_hosted_redis_that_refuses_config(tmp_path):
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with running_gateway(tmp_path / "state", valkey.url, "florin") as gateway:
            async with Redis.from_url(valkey.url) as redis:
                await redis.config_set("appendonly", "no")
                await redis.execute_command("ACL", "SETUSER", "default", "-config")
            code, found = await doctor(gateway)
            assert found["redis_persistence"]["status"] == "ok"
            async with Redis.from_url(valkey.url) as redis:
                await redis.execute_command("ACL", "SETUSER", "default", "-info")
            code, found = await doctor(gateway)
            assert (code, found["redis"]["status"]) == (0, "ok")
            assert found["redis_memory"]["message"].startswith("Not checked")


async def test_an_artifact_directory_that_two_installations_share(gateway: Gateway):
    root = gateway.state.settings.artifacts
    ArtifactStore(root).open("another")
    code, found = await doctor(gateway)
    assert (code, found["artifact_dir"]["status"]) == (0, "warning")
    mark = root / ".installations" / "another"
    assert str(mark) in found["artifact_dir"]["remedy"]
    mark.unlink()
    code, found = await doctor(gateway)
    assert found["artifact_dir"]["status"] == "ok"


async def test_an_artifact_directory_that_cannot_be_written(gateway: Gateway):
    root = gateway.state.settings.artifacts
    shutil.rmtree(root)
    root.write_text("not a directory")
    code, found = await doctor(gateway)
    assert code == 1
    assert found["artifact_dir"]["status"] == "problem"
    assert str(root) in found["artifact_dir"]["message"]


async def test_a_ledger_that_does_not_answer(gateway: Gateway, monkeypatch):
    from gateway.metering.ledger.database import LedgerUnavailableError

    def away():
        raise LedgerUnavailableError("The ledger cannot be reached.")

    monkeypatch.setattr(gateway.state.ledger, "read", away)
    code, found = await doctor(gateway)
    assert (code, found["ledger"]["status"]) == (1, "problem")


async def test_without_a_gateway_it_says_that(free_url: str):
    code, found = await doctor(free_url)
    assert (code, set(found)) == (1, {"gateway"})
    assert "florin serve" in found["gateway"]["remedy"]
    assert free_url in found["gateway"]["message"]


@pytest.fixture
async def free_url() -> str:
    async with MockEngine() as gone:
        return gone.url


async def test_with_a_wrong_key_it_says_that(gateway: Gateway):
    code, found = await doctor(gateway, key="fl_wrong_key")
    assert (code, set(found)) == (1, {"operator_key"})


async def test_server_that_is_not_a_gateway():
    async with MockEngine() as other:
        code, found = await doctor(other.url)
    assert (code, set(found)) == (1, {"gateway"})
