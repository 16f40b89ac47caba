"""Drains under load: what an engine holds is loaded elsewhere first, so that no request waits for a load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx2

from adapters.model import SlotState
from tests.integration.conftest import EACH_UNLOAD, Deployment
from tests.integration.test_routing import ask, stream
from tests.support.engine_hosts import add_version, registered
from tests.support.engine_hosts import ask as host_ask
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.waiting import until

LOAD_SECONDS = 1.5
TENANTS = ("acme", "bolt")


@contextlib.asynccontextmanager
async def callers(each: dict[str, Callable[[], Awaitable[object]]]) -> AsyncIterator[Counter[str]]:
    """Call each one time after another; yields how often each was answered. A failure fails the test."""
    answered: Counter[str] = Counter()
    over = asyncio.Event()

    async def repeat(name: str, call: Callable[[], Awaitable[object]]) -> None:
        while not over.is_set():
            await call()
            answered[name] += 1
            await asyncio.sleep(0.01)

    calls = [asyncio.create_task(repeat(name, call)) for name, call in each.items()]
    try:
        await answered_again(answered, *each)
        yield answered
        await answered_again(answered, *each)
    finally:
        over.set()
        await asyncio.gather(*calls)


async def answered_again(answered: Counter[str], *names: str) -> None:
    """Each of them twice, so that the second one was asked for after the call."""
    before = Counter(answered)
    await until(lambda: all(answered[name] >= before[name] + 2 for name in names))


async def on_a(deployment: Deployment, *tenants: str) -> None:
    """Makes the tenants' adapters resident on `a`; loads take long from now on. `b` is cordoned."""
    await deployment.gateway.set_state("b", "cordoned")
    for tenant in tenants:
        await ask(deployment, tenant)
    slots = deployment.gateway.state.residency.slots
    await until(lambda: [*slots("a").values()] == [SlotState.RESIDENT] * len(tenants))  # the feed brings it
    for engine in deployment.engines:
        engine.faults.update({"load_delay": LOAD_SECONDS})


async def open_b(deployment: Deployment) -> None:
    await opened(deployment.gateway, "b")


async def opened(gateway: Gateway, engine: str) -> None:
    """Ends its cordon. The scheduler has learned by then how long a load takes, so that no request opens a
    replica of its own accord."""
    gateway.state.pool.known[engine].view.costs.load_base = LOAD_SECONDS * 1000
    await gateway.set_state(engine, "active")


def held(deployment: Deployment, engine: str) -> set[str]:
    return set(deployment.gateway.state.residency.slots(engine))


async def drained(admin: httpx2.AsyncClient) -> bool:
    return (await admin.get("engines/a/drain")).json()["phase"] == "drained"


@EACH_UNLOAD
async def test_no_request_waits_for_a_load_during_a_drain(deployment: Deployment, admin):
    await on_a(deployment, *TENANTS)
    names = held(deployment, "a")
    asking = {tenant: partial(stream, deployment, tenant) for tenant in TENANTS}
    async with callers(asking) as answered:
        await open_b(deployment)
        deployment.b.faults.update({"load_held": True})
        begun = (await admin.post("engines/a/drain", json={"timeout": 30})).json()
        assert begun["phase"] == "loading"
        await until(lambda: held(deployment, "b"))
        await answered_again(answered, *TENANTS)  # while the load lasts
        deployment.b.faults.update({"load_held": False, "load_delay": 0.0})
        await until(lambda: not deployment.gateway.state.catalog.engines["a"].takes_requests)
        assert held(deployment, "b") == names  # loaded before the routing moved
        calls = len(deployment.a.state.calls)
        await until(lambda: not held(deployment, "a"))
    assert len(deployment.a.state.calls) <= calls + len(TENANTS)
    assert deployment.a.state.adapters == {}  # unloaded
    assert [engine for engine, _ in deployment.loads()] == ["a", "a", "b", "b"]
    await until(lambda: drained(admin))
    records = [record for tenant in TENANTS for record in await deployment.gateway.usage(tenant)]
    assert {record.outcome for record in records} == {"ok"}


async def test_a_drain_ends_in_time_even_if_a_load_does_not(deployment: Deployment, admin):
    """The version is then loaded by the request that needs it."""
    await on_a(deployment, "acme")
    await open_b(deployment)
    await admin.post("engines/a/drain", json={"timeout": 0.5})
    await until(lambda: not deployment.gateway.state.catalog.engines["a"].takes_requests)
    assert (await admin.get("engines/a/drain")).json()["stays"] == [
        {"version": "acme/support@v1", "reason": "not loaded elsewhere in time"}
    ]
    assert await ask(deployment, "acme")


async def test_uncordon_ends_a_drain_and_a_second_drain_continues(deployment: Deployment, admin):
    await on_a(deployment, *TENANTS)
    await open_b(deployment)
    first = (await admin.post("engines/a/drain", json={"timeout": 60})).json()
    again = (await admin.post("engines/a/drain", json={"timeout": 90})).json()
    assert again["until"] == first["until"]
    await admin.put("engines/a/state", json={"state": "active"})
    await until(lambda: SlotState.LOADING not in deployment.gateway.state.residency.slots("b").values())
    assert (await admin.get("engines/a/drain")).json()["phase"] == "serving"
    assert len(held(deployment, "a")) == len(TENANTS)
    await admin.post("engines/a/drain", json={"timeout": 60})
    await until(lambda: not held(deployment, "a"))
    assert len(held(deployment, "b")) == len(TENANTS)


async def test_a_drain_outlives_the_worker_that_began_it(
    deployment: Deployment, admin, tmp_path, valkey_url: str, prefix: str
):
    await on_a(deployment, *TENANTS)
    await open_b(deployment)
    settings = {"probe_interval": 0.2}
    async with running_gateway(tmp_path / "second", valkey_url, prefix, **settings) as second:
        async with second.http() as http:  # not the leader: it only writes what is to be done
            answer = await http.post(f"{second.url}/admin/v1/engines/a/drain", json={"timeout": 60})
        assert answer.json()["phase"] == "loading"
    await until(lambda: not held(deployment, "a"))
    assert len(held(deployment, "b")) == len(TENANTS)


# -- engines that their hosts stop


async def test_a_spot_notice_loads_the_hottest_elsewhere_before_the_engine_stops(gateway, run, tmp_path):
    """No request waits for a load, and none fails; the agent is called with this host's own key."""
    first, second = await run(name="h1"), await run(name="h2")
    await gateway.add_tenant("acme")
    for agent, name in ((first, "h1"), (second, "h2")):
        await registered(gateway, agent, name)
    await gateway.set_state("h2", "cordoned")
    for name in ("one", "two"):
        await add_version(gateway, f"acme/{name}")
        await host_ask(gateway, model=name)
    await until(lambda: len(gateway.state.residency.slots("h1")) == 2)
    await opened(gateway, "h2")
    address = gateway.state.catalog.engines["h1"].agent
    key = (tmp_path / "cache-h1.key").read_text().strip()
    asking = {name: partial(host_ask, gateway, model=name) for name in ("one", "two")}
    async with httpx2.AsyncClient(trust_env=False) as http, callers(asking) as answered:
        held_loads = await http.post(f"{second.url}/_mock/faults", json={"load_held": True})
        assert held_loads.status_code == 200, held_loads.text
        said = await http.post(
            f"{address}/spot-notice", json={"seconds": 25}, headers={"authorization": f"Bearer {key}"}
        )
        assert said.status_code == 200, said.text
        await until(lambda: gateway.state.residency.slots("h2"))
        await answered_again(answered, *asking)  # while the load lasts
        await http.post(f"{second.url}/_mock/faults", json={"load_held": False})
        async with asyncio.timeout(60):
            assert await first.process.wait() == 0
    await until(lambda: len(gateway.state.residency.slots("h2")) == 2)
    await until(lambda: "Engine h1: drained" in first.log, what=lambda: first.log)
    records = await gateway.usage("acme")
    assert {record.outcome for record in records} == {"ok"}
    assert {record.engine for record in records} == {"h1", "h2"}


async def test_a_roll_restarts_each_engine_and_no_request_fails(gateway, run):
    """By its agent, with the command as people run it; the engines get their adapters back."""
    agents = {name: await run(name=name) for name in ("h1", "h2")}
    await gateway.add_tenant("acme")
    for name, agent in agents.items():
        await registered(gateway, agent, name)
    models = ("one", "two")
    for name in models:
        await add_version(gateway, f"acme/{name}")
        await host_ask(gateway, model=name)
    await until(lambda: sum(len(gateway.state.residency.slots(name)) for name in agents) == 2)
    first = {name: gateway.state.catalog.engines[name] for name in agents}
    held_before = {name: set(gateway.state.residency.slots(name)) for name in agents}
    over, answers = asyncio.Event(), 0

    async def call(model: str) -> None:
        nonlocal answers
        while not over.is_set():
            await host_ask(gateway, model=model)
            answers += 1
            await asyncio.sleep(0.02)

    calls = [asyncio.create_task(call(name)) for name in models]
    environ = {**os.environ, "FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
    rolling = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "engine", "roll", "--all", "--json", "--timeout", "30",
        env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(120):
        said, notes = await rolling.communicate()
    over.set()
    await asyncio.gather(*calls)
    assert rolling.returncode == 0, notes
    assert [e["engine"] for e in json.loads(said)["engines"]] == ["h1", "h2"]
    for name, before in first.items():
        engine = gateway.state.catalog.engines[name]
        assert (engine.state, engine.drain, engine.epoch != before.epoch) == ("active", None, True)
        wanted = held_before[name]
        await until(lambda n=name, w=wanted: w <= set(gateway.state.residency.slots(n)))
    assert answers > 10
    assert {record.outcome for record in await gateway.usage("acme")} <= {"ok", "failover"}
    actions = [e.note.action for e in await gateway.state.store.audit() if e.note.subject == "h1"]
    assert actions == ["engine.add", "engine.drain", "engine.restart", "engine.epoch", "engine.state"]
