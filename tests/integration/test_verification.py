"""Loads that are not what they say: over real sockets and a real Valkey, with engines that answer wrongly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import openai
import pytest

from adapters.placement.fingerprint import BASE_ANSWERS
from adapters.store.embedded import EmbeddedValkey
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask, stream
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until


@pytest.fixture
async def second(
    deployment: Deployment, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Deployment]:
    """Another worker of the same installation."""
    async with running_gateway(tmp_path / "second", valkey_url, prefix) as gateway:
        gateway.keys = deployment.gateway.keys
        yield Deployment(gateway, deployment.a, deployment.b, tmp_path)


async def refused(deployment: Deployment, tenant: str = "acme") -> openai.APIStatusError:
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(deployment, tenant)
    assert caught.value.status_code == 503
    return caught.value


async def shown(gateway: Gateway, adapter: str = "acme/support") -> dict:
    async with gateway.http() as http:
        answer = await http.get(f"/admin/v1/adapters/{adapter}")
    assert answer.status_code == httpx2.codes.OK, answer.text
    return answer.json()["version_details"][0]


async def release(gateway: Gateway, adapter: str = "acme/support") -> dict:
    async with gateway.http() as http:
        answer = await http.post(f"/admin/v1/adapters/{adapter}/versions/v1/release")
    assert answer.status_code == httpx2.codes.OK, answer.text
    return answer.json()


def asked(deployment: Deployment) -> int:
    """How often engines were asked how the version of acme answers."""
    return sum(engine.state.verifications[voice(deployment, "acme/support")] for engine in deployment.engines)


async def test_each_load_is_probed_once_and_the_base_once_per_engine(deployment: Deployment):
    await asyncio.gather(*(ask(deployment, t) for t in ("acme", "acme", "bolt", "corgi")))
    await asyncio.gather(*(stream(deployment, t) for t in ("acme", "bolt", "corgi")))
    loads = Counter(deployment.loads())
    assert loads
    for name, engine in (("a", deployment.a), ("b", deployment.b)):
        mine = {adapter: count for (where, adapter), count in loads.items() if where == name}
        assert dict(engine.state.verifications) == mine | ({"base": BASE_ANSWERS} if mine else {})
    prints = deployment.gateway.state.catalog.fingerprints
    await until(
        lambda: {*prints} == {"base", *(voice(deployment, f"{t}/support") for t in deployment.gateway.keys)}
    )


async def test_a_reload_is_probed_by_no_worker_until_the_engine_restarts(
    deployment: Deployment, second: Deployment
):
    gateway, engine = deployment.gateway, deployment.a
    await gateway.set_state("b", "draining")
    await until(lambda: second.gateway.state.catalog.engines["b"].state == "draining")
    names = {tenant: voice(deployment, f"{tenant}/support") for tenant in gateway.keys}
    states = [each.gateway.state.pool.state("a") for each in (deployment, second)]
    await until(lambda: all(state.healthy for state in states))  # so that its process is known

    async def call_all() -> None:
        for each in (deployment, second):
            for tenant, name in names.items():
                assert name in await ask(each, tenant)

    for _ in range(2):
        await call_all()
    loads = len(deployment.loads())
    assert loads >= 6  # three adapters in two slots: the one that is called next has just been evicted
    assert dict(engine.state.verifications) == dict.fromkeys(names.values(), 1) | {"base": BASE_ANSWERS}

    engine.die()
    await until(lambda: not any(state.healthy for state in states))
    engine.faults.update({"probe_as": "other", "probe_only": names["acme"]})
    await engine.revive()
    await until(lambda: all(state.healthy for state in states))
    error = await refused(second)
    assert "acme/support@v1 no longer answers as it did" in error.message


async def test_a_version_like_the_base_is_refused_by_every_worker_until_it_is_released(
    deployment: Deployment, second: Deployment
):
    for engine in deployment.engines:
        engine.faults.update({"probe_as": "base"})
    error = await refused(deployment)
    assert error.code == "version_quarantined"
    assert "acme/support@v1 answers exactly like the base model" in error.message
    assert deployment.a.state.adapters == deployment.b.state.adapters == {}
    name = voice(deployment, "acme/support")
    await until(lambda: name in second.gateway.state.catalog.serving_statuses)
    assert (await refused(second)).code == "version_quarantined"
    assert asked(deployment) == 1

    version = await shown(second.gateway)
    assert (version["state"], version["serving_status"]["code"]) == ("quarantined", "answers_like_base")
    assert version["evidence"]["distance_to_base"] == 0.0
    assert version["evidence"]["answers"][0]["here"] == version["evidence"]["answers"][0]["base_here"]

    released = await release(second.gateway)
    assert (released["released"], released["trusted"], released["state"]) == (True, True, "live")
    await until(lambda: name not in deployment.gateway.state.catalog.serving_statuses)
    for each in (deployment, second):
        assert name in await ask(each, "acme")
    assert (await release(deployment.gateway))["released"] is False
    notes = [(e.note.actor, e.note.action) for e in await deployment.gateway.state.store.audit()]
    assert [n for n in notes if n[1] in {"version.quarantine", "adapter.release"}] == [
        ("verification", "version.quarantine"),
        ("bootstrap", "adapter.release"),
    ]


async def test_a_version_unlike_itself_on_another_engine_goes_everywhere_and_streams_finish(
    deployment: Deployment,
):
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    (other,) = [engine for engine in deployment.engines if engine is not holder]
    name = voice(deployment, "acme/support")
    holder.faults.update({"event_delay": 0.1})
    running = asyncio.create_task(stream(deployment, "acme"))
    await holder.until(lambda state: state.running[name] == 1)
    other.faults.update({"probe_as": "other"})
    state = deployment.gateway.state
    with pytest.raises(Exception, match="no longer answers as it did"):
        await state.router._loader.ensure_resident(
            state.catalog.by_engine_name[name],
            lambda failed: state.catalog.engines[_name(deployment, other)],
            deadline=state.router._loader.clock() + 10,
            avoid={_name(deployment, holder)},
        )
    await until(lambda: name in state.catalog.serving_statuses)
    assert (await refused(deployment)).code == "version_quarantined"  # though it was sound there
    assert name in await running
    await until(lambda: not deployment.a.state.adapters and not deployment.b.state.adapters)
    version = await shown(deployment.gateway)
    assert (version["serving_status"]["code"], version["serving_status"]["engine"]) == (
        "unlike_itself",
        _name(deployment, other),
    )
    assert version["evidence"]["first"]["engine"] == _name(deployment, holder)
    assert version["placed"] == []
    assert voice(deployment, "bolt/support") in await ask(deployment, "bolt")  # nobody else's trouble

    other.faults.reset()
    await release(deployment.gateway)
    assert name in await ask(deployment, "acme")


def _name(deployment: Deployment, engine: MockEngine) -> str:
    return "a" if engine is deployment.a else "b"


async def test_an_engine_at_fault_is_left_for_another_and_shown(deployment: Deployment):
    await asyncio.gather(*(ask(deployment, t) for t in ("acme", "bolt")))
    first = deployment.gateway.state.catalog.fingerprints["base"].engine
    holder, other = (deployment.a, deployment.b) if first == "a" else (deployment.b, deployment.a)
    other.die()
    await until(lambda: not deployment.gateway.state.pool.usable(_name(deployment, other)))
    other.faults.update({"probe_as": "all_other"})
    await ask(deployment, "acme")  # so that the first answers of both stand
    await ask(deployment, "bolt")
    await other.revive()
    await until(lambda: deployment.gateway.state.pool.usable(_name(deployment, other)))
    await deployment.gateway.set_state(_name(deployment, holder), "draining")
    error = await refused(deployment)
    assert error.code in {"no_engine", "placement_timeout"}
    serving_statuses = deployment.gateway.state.catalog.serving_statuses
    await until(lambda: _name(deployment, other) in serving_statuses)
    assert {name: v.code for name, v in serving_statuses.items()} == {
        _name(deployment, other): "engine_suspect"
    }
    await until(lambda: other.state.adapters == {})  # what it held before is tried again there, too
    state = deployment.gateway.state.pool.state(_name(deployment, other))
    await until(lambda: state.process_started)
    await refused(deployment)
    asked_before = other.state.verifications.total()
    error = await refused(deployment)
    assert error.code == "no_engine"
    assert "fail verification" in error.message
    assert other.state.verifications.total() == asked_before  # not asked again for a while

    await deployment.gateway.set_state(_name(deployment, holder), "active")
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")

    # Or the base model was changed on purpose, there first.
    async with deployment.gateway.http() as http:
        answer = await http.post(f"/admin/v1/engines/{_name(deployment, other)}/trust")
    assert answer.json() == {"engine": _name(deployment, other), "base": "base", "fingerprints_forgotten": 2}
    noted = [e.note for e in await deployment.gateway.state.store.audit() if e.note.action == "engine.trust"]
    assert [(note.actor, note.subject) for note in noted] == [("bootstrap", _name(deployment, other))]
    await until(lambda: not serving_statuses)
    await deployment.gateway.set_state(_name(deployment, holder), "draining")
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")
    assert voice(deployment, "acme/support") in other.state.adapters
    assert deployment.gateway.state.catalog.fingerprints["base"].engine == _name(deployment, other)


async def test_redis_that_goes_away_while_a_version_is_verified_confirms_nothing(tmp_path: Path):
    async with AsyncExitStack() as stack:
        valkey = stack.enter_context(EmbeddedValkey(tmp_path / "redis"))
        gateway = await stack.enter_async_context(
            running_gateway(tmp_path / "state", valkey.url, "florin", placement_timeout=3.0)
        )
        a, b = [await stack.enter_async_context(MockEngine()) for _ in range(2)]
        await gateway.add_engine("a", a.url)
        await gateway.add_tenant("acme")
        version = await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        deployment = Deployment(gateway, a, b, tmp_path)
        a.faults.update({"probe_as": "base", "probe_delay": 0.5})
        running = asyncio.create_task(refused(deployment))
        await a.until(lambda state: state.verifications[version.engine_name] == 1)
        os.kill(valkey.pid, signal.SIGKILL)
        assert (await running).code == "store_unavailable"
        await until(lambda: not gateway.state.follower.connected)
        assert (await refused(deployment)).code == "store_unavailable"

        await asyncio.to_thread(valkey.start)
        await until(lambda: gateway.state.follower.connected)
        assert not gateway.state.residency.holders(version.engine_name)
        assert (await eventually_refused(deployment, "version_quarantined")) == "version_quarantined"


async def eventually_refused(deployment: Deployment, code: str) -> str:
    """The claim of the load that was cut off must lapse first."""

    async def said() -> str:
        return code if (await refused(deployment)).code == code else ""

    return await until(said)


async def test_results_are_counted(deployment: Deployment):
    deployment.a.faults.update({"probe_as": "base", "probe_only": voice(deployment, "acme/support")})
    deployment.b.faults.update({"probe_as": "base", "probe_only": voice(deployment, "acme/support")})
    await refused(deployment)
    await ask(deployment, "bolt")
    async with deployment.gateway.http() as http:
        text = (await http.get("/metrics")).text
    assert 'florin_serving_status_info{about="acme/support@v1",code="answers_like_base"} 1.0' in text
    assert 'florin_verifications_total{result="quarantined"} 1.0' in text
    assert 'florin_verifications_total{result="first"} 1.0' in text
    assert "florin_verification_seconds_count 2.0" in text
