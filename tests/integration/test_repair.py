"""The reconciler over real sockets: engines that are killed and come back, adapters behind Florin's back,
leaders that die or are stopped in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.model import SlotState
from adapters.reconcile.reconciler import LEASE_MS, ROLE
from loadtests.mock_engine import MockEngine
from loadtests.mock_engine.process import MockProcess
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO, voice
from tests.integration.test_doctor import bad, doctor
from tests.integration.test_outages import Served
from tests.integration.test_routing import ask
from tests.support.engine_hosts import free_port
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.lora import LLAMA, write_adapter
from tests.support.waiting import PATIENCE_S, until

NAMES = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture
async def process() -> AsyncIterator[MockProcess]:
    """An engine that is really killed, and comes back on its port."""
    with MockProcess(port=free_port(), max_loras=8, max_cpu_loras=8) as engine:
        yield engine


async def call(gateway: Gateway, tenant: str) -> str:
    async with gateway.client(tenant) as client:
        answer = await client.chat.completions.create(model="support", messages=HELLO)
        return answer.choices[0].message.content


async def settle(gateway: Gateway, engine: str, tenants: list[str]) -> list[str]:
    """Adapters called in this order, the last one most recently; their names, hottest first, once Redis knows
    it."""
    for tenant in tenants:
        await call(gateway, tenant)
    versions = gateway.state.catalog.versions
    wanted = [versions[f"{tenant}/support@v1"].engine_name for tenant in reversed(tenants)]

    async def heard() -> bool:
        return list(await gateway.state.store.recency(engine)) == wanted

    await until(heard)
    return wanted


async def populate(gateway: Gateway, tmp_path: Path, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        await gateway.add_tenant(name)
        await gateway.add_adapter(f"{name}/support", fake_adapter(tmp_path / name))


def loaded(log: dict) -> list[str]:
    return [one["name"] for one in log["admin"] if one["action"] == "load" and one["status"] == 200]


async def test_killed_engine_reloads_its_adapters_most_recent_first_while_others_serve(
    gateway: Gateway, process: MockProcess, tmp_path: Path
):
    await populate(gateway, tmp_path)
    await gateway.add_engine("a", process.url, slots=8)
    await call(gateway, "ant")  # where all of them now are
    for name in NAMES:
        await call(gateway, name)
    hottest = await settle(gateway, "a", ["cat", "ant", "eel", "bee", "dog"])
    async with MockEngine() as other, contextlib.AsyncExitStack() as stack:
        await gateway.add_tenant("zoe")
        await gateway.add_adapter("zoe/support", fake_adapter(tmp_path / "zoe"))
        await gateway.set_state("a", "cordoned")
        await gateway.add_engine("b", other.url)
        await call(gateway, "zoe")
        answers: list[str] = []

        async def traffic() -> None:
            while True:
                answers.append(await call(gateway, "zoe"))

        going = asyncio.create_task(traffic())
        stack.callback(going.cancel)
        process.kill()
        await until(lambda: gateway.state.pool.state("a").healthy is False)
        assert set(gateway.state.residency.slots("a")) == set(hottest), "a death takes nobody's place"
        await asyncio.to_thread(process.start)
        await until(lambda: not set(hottest) - set(loaded(process.log())))
        await until(lambda: set(gateway.state.residency.slots("a").values()) == {SlotState.RESIDENT})
        assert loaded(process.log()) == hottest
        before = len(answers)
        await until(lambda: len(answers) > before + 5)
        assert not going.done(), going
        assert all("fl-" in text for text in answers)


async def test_unobserved_engine_restart_is_detected(deployment: Deployment):
    """It was away for less than a probe's pause: only its list tells."""
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.state.forget()
    await holder.until(lambda state: voice(deployment, "acme/support") in state.adapters)
    residency = deployment.gateway.state.residency
    await until(lambda: len(residency.holders(voice(deployment, "acme/support"))) == 1)


async def test_hung_engine_does_not_delay_repairs_of_others(deployment: Deployment):
    await ask(deployment, "acme")
    await ask(deployment, "bolt")
    await ask(deployment, "corgi")
    a, b = deployment.engines
    a_held, b_held = set(a.state.adapters), set(b.state.adapters)
    assert a_held
    assert b_held
    a.faults.update({"load_delay": 3600.0})
    a.state.forget()
    b.state.forget()
    await b.until(lambda state: set(state.adapters) == b_held)
    assert a.state.adapters == {}


async def hand_over(store) -> None:
    """From the worker of this process, which has led from the start, to whoever else asks first."""
    lead = store.lead

    async def never(role: str, owner: str, ttl_ms: int) -> int:
        return 0 if role == ROLE and ttl_ms else await lead(role, owner, ttl_ms)

    owner = None

    async def find(role: str, asker: str, ttl_ms: int) -> int:
        nonlocal owner
        if role == ROLE:
            owner = asker
        return await never(role, asker, ttl_ms)

    store.lead = find
    await until(lambda: owner)
    await lead(ROLE, owner, 0)

    async def taken() -> bool:
        vacant = await lead(ROLE, "nobody", 1)  # its lease ends after a millisecond
        await asyncio.sleep(0.1)
        return not vacant

    await until(taken)
    store.lead = lead


async def test_resumed_former_leader_changes_nothing(
    deployment: Deployment, tmp_path: Path, valkey_url: str, prefix: str
):
    """SIGSTOP between loads: the next leader goes on where it was, within a lease. SIGCONT: what it was about to do is
    not done."""
    served = Served(
        tmp_path / "leader", redis_url=valkey_url, redis_prefix=prefix, probe_interval=0.2, reload_interval=2
    )
    try:
        deployment.b.die()
        await ask(deployment, "acme")
        await ask(deployment, "bolt")
        hottest = await settle(deployment.gateway, "a", ["bolt", "acme"])
        await hand_over(deployment.gateway.state.store)
        deployment.a.state.forget()
        deployment.a.state.admin.clear()
        await deployment.a.until(lambda state: list(state.adapters) == hottest[:1], timeout=PATIENCE_S)
        await asyncio.sleep(0.5)
        assert list(deployment.a.state.adapters) == hottest[:1], "the patient one does not lead"
        os.kill(served.process.pid, signal.SIGSTOP)
        await deployment.a.until(
            lambda state: list(state.adapters) == hottest, timeout=LEASE_MS / 1000 + PATIENCE_S
        )
        before = [(call.action, call.name) for call in deployment.a.state.admin]
        os.kill(served.process.pid, signal.SIGCONT)
        await asyncio.sleep(3)
        assert [(call.action, call.name) for call in deployment.a.state.admin] == before
        assert [name for _, name in before] == hottest
    finally:
        await asyncio.to_thread(served.stop)


async def test_files_of_a_removed_adapter_are_deleted_once_no_engine_can_hold_them(
    tmp_path: Path, valkey_url: str, prefix: str
):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA.config))
    artifacts = tmp_path / "artifacts"

    def gateway(grace: float):
        return running_gateway(
            tmp_path / "state", valkey_url, prefix, artifact_dir=artifacts, artifact_grace=grace
        )

    async with MockEngine(base="tiny/base") as engine:
        async with gateway(grace=1000.0) as first, first.http() as http:
            body = {
                "name": "a", "url": engine.url, "base": "tiny/base", "gpu_type": "h100", "slots": 2,
                "max_rank": 8, "base_config": str(config),
            }  # fmt: skip
            assert (await http.post("/admin/v1/engines", json=body)).status_code == 201
            assert (await http.post("/admin/v1/tenants", json={"name": "acme"})).status_code == 201
            kept, gone = write_adapter(tmp_path / "kept"), write_adapter(tmp_path / "gone", fill=7)
            for name, source in (("kept", kept), ("gone", gone), ("twin", kept)):
                body = {"adapter": f"acme/{name}", "source": str(source)}
                assert (await http.post("/admin/v1/adapters", json=body)).status_code == 201
            for name in ("gone", "twin"):
                assert (await http.delete(f"/admin/v1/adapters/acme/{name}")).status_code == 200
            assert len(first.state.catalog.pending_deletions) == 2
        published = [path for path in artifacts.iterdir() if not path.name.startswith(".")]
        assert len(published) == 2
        for path in published:
            os.utime(path, (time.time() - 7200,) * 2)
        async with gateway(grace=0.0) as second:
            await until(lambda: not second.state.catalog.pending_deletions)
            (left,) = [path for path in artifacts.iterdir() if not path.name.startswith(".")]
            version = second.state.catalog.versions["acme/kept@v1"]
            assert str(left) == version.path
            notes = [e.note for e in await second.state.store.audit() if e.note.action == "version.erase"]
            assert {(n.actor, n.subject, n.details["files"]) for n in notes} == {
                ("reconciler", "acme/gone", True),
                ("reconciler", "acme/twin", False),
            }
            await until(lambda: second.state.pool.state("a").healthy)
            code, found = await doctor(second)
            assert (code, bad(found)) == (0, {"price"}), found
