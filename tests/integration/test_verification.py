"""Loads that are not what they say: over real sockets and a real Valkey, with engines that answer wrongly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import openai
import pytest

from adapters.embedded import EmbeddedValkey
from loadtests.mock_engine import MockEngine
from tests.harness import Gateway, fake_adapter, running_gateway
from tests.integration.conftest import Town
from tests.integration.test_data_plane import voice
from tests.integration.test_outages import until
from tests.integration.test_routing import ask, stream


@pytest.fixture
async def second(town: Town, tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Town]:
    """Another worker of the same installation."""
    async with running_gateway(tmp_path / "second", valkey_url, prefix) as gateway:
        gateway.keys = town.gateway.keys
        yield Town(gateway, town.a, town.b, tmp_path)


async def refused(town: Town, tenant: str = "acme") -> openai.APIStatusError:
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(town, tenant)
    assert caught.value.status_code == 503
    return caught.value


async def shown(gateway: Gateway, adapter: str = "acme/support") -> dict:
    async with gateway.http() as http:
        answer = await http.get(f"/admin/v1/adapters/{adapter}")
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()["version_details"][0]


async def release(gateway: Gateway, adapter: str = "acme/support") -> dict:
    async with gateway.http() as http:
        answer = await http.post(f"/admin/v1/adapters/{adapter}/versions/v1/release")
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer.json()


def asked(town: Town) -> int:
    """How often engines were asked how the version of acme answers."""
    return sum(engine.state.verifications[voice(town, "acme/support")] for engine in town.engines)


async def test_each_load_is_probed_once_and_the_base_once_per_engine(town: Town):
    await asyncio.gather(*(ask(town, t) for t in ("acme", "acme", "bolt", "corgi")))
    await asyncio.gather(*(stream(town, t) for t in ("acme", "bolt", "corgi")))
    loads = Counter(town.loads())
    assert loads
    for name, engine in (("a", town.a), ("b", town.b)):
        mine = {adapter: count for (where, adapter), count in loads.items() if where == name}
        assert dict(engine.state.verifications) == mine | ({"base": 1} if mine else {})
    prints = town.gateway.state.catalog.fingerprints
    await until(lambda: {*prints} == {"base", *(voice(town, f"{t}/support") for t in town.gateway.keys)})


async def test_a_version_like_the_base_is_refused_by_every_worker_until_it_is_released(
    town: Town, second: Town
):
    for engine in town.engines:
        engine.faults.update({"probe_as": "base"})
    error = await refused(town)
    assert error.code == "version_quarantined"
    assert "acme/support@v1 answers exactly like the base model" in error.message
    assert town.a.state.adapters == town.b.state.adapters == {}
    name = voice(town, "acme/support")
    await until(lambda: name in second.gateway.state.catalog.verdicts)
    assert (await refused(second)).code == "version_quarantined"
    assert asked(town) == 1

    version = await shown(second.gateway)
    assert (version["state"], version["verdict"]["code"]) == ("quarantined", "answers_like_base")
    assert version["evidence"]["distance_to_base"] == 0.0
    assert version["evidence"]["answers"][0]["here"] == version["evidence"]["answers"][0]["base_here"]

    released = await release(second.gateway)
    assert (released["released"], released["trusted"], released["state"]) == (True, True, "live")
    await until(lambda: name not in town.gateway.state.catalog.verdicts)
    for each in (town, second):
        assert name in await ask(each, "acme")
    assert (await release(town.gateway))["released"] is False
    notes = [(e.note.actor, e.note.action) for e in await town.gateway.state.store.audit()]
    assert [n for n in notes if n[1] in {"version.quarantine", "adapter.release"}] == [
        ("verification", "version.quarantine"),
        ("bootstrap", "adapter.release"),
    ]


async def test_a_version_unlike_itself_on_another_engine_goes_everywhere_and_streams_finish(town: Town):
    await ask(town, "acme")
    (holder,) = [engine for engine in town.engines if engine.state.calls]
    (other,) = [engine for engine in town.engines if engine is not holder]
    name = voice(town, "acme/support")
    holder.faults.update({"event_delay": 0.1})
    running = asyncio.create_task(stream(town, "acme"))
    await holder.until(lambda state: state.running[name] == 1)
    other.faults.update({"probe_as": "other"})
    state = town.gateway.state
    with pytest.raises(Exception, match="unlike it did"):
        await state.router._loader.ensure_resident(
            state.catalog.by_engine_name[name],
            lambda failed: state.catalog.engines[_name(town, other)],
            deadline=state.router._loader.clock() + 10,
            avoid={_name(town, holder)},
        )
    assert (await refused(town)).code == "version_quarantined"  # though it was sound there
    assert name in await running
    await until(lambda: not town.a.state.adapters and not town.b.state.adapters)
    version = await shown(town.gateway)
    assert (version["verdict"]["code"], version["verdict"]["engine"]) == ("unlike_itself", _name(town, other))
    assert version["evidence"]["first"]["engine"] == _name(town, holder)
    assert version["placed"] == []
    assert voice(town, "bolt/support") in await ask(town, "bolt")  # nobody else's trouble

    other.faults.reset()
    await release(town.gateway)
    assert name in await ask(town, "acme")


def _name(town: Town, engine: MockEngine) -> str:
    return "a" if engine is town.a else "b"


async def test_an_engine_at_fault_is_left_for_another_and_shown(town: Town):
    await asyncio.gather(*(ask(town, t) for t in ("acme", "bolt")))
    first = town.gateway.state.catalog.fingerprints["base"].engine
    holder, other = (town.a, town.b) if first == "a" else (town.b, town.a)
    other.die()
    await until(lambda: not town.gateway.state.pool.usable(_name(town, other)))
    other.faults.update({"probe_as": "all_other"})
    await ask(town, "acme")  # so that the first answers of both stand
    await ask(town, "bolt")
    await other.revive()
    await until(lambda: town.gateway.state.pool.usable(_name(town, other)))
    await town.gateway.set_state(_name(town, holder), "draining")
    error = await refused(town)
    assert error.code in {"no_engine", "placement_timeout"}
    verdicts = town.gateway.state.catalog.verdicts
    await until(lambda: _name(town, other) in verdicts)
    assert {name: v.code for name, v in verdicts.items()} == {_name(town, other): "engine_suspect"}
    assert other.state.adapters == {}
    await asyncio.sleep(1)  # by now it is known when its process began
    await refused(town)
    asked_before = other.state.verifications.total()
    error = await refused(town)
    assert error.code == "no_engine"
    assert "answers wrongly" in error.message
    assert other.state.verifications.total() == asked_before  # not asked again for a while

    await town.gateway.set_state(_name(town, holder), "active")
    assert voice(town, "acme/support") in await ask(town, "acme")

    # Or the base model was changed on purpose, there first.
    async with town.gateway.http() as http:
        answer = await http.post(f"/admin/v1/engines/{_name(town, other)}/trust")
    assert answer.json() == {"engine": _name(town, other), "base": "base", "fingerprints_forgotten": 2}
    noted = [e.note for e in await town.gateway.state.store.audit() if e.note.action == "engine.trust"]
    assert [(note.actor, note.subject) for note in noted] == [("bootstrap", _name(town, other))]
    await until(lambda: not verdicts)
    await town.gateway.set_state(_name(town, holder), "draining")
    assert voice(town, "acme/support") in await ask(town, "acme")
    assert voice(town, "acme/support") in other.state.adapters
    assert town.gateway.state.catalog.fingerprints["base"].engine == _name(town, other)


async def test_what_cannot_be_loaded_is_told_at_once_by_every_worker(town: Town, second: Town):
    for engine in town.engines:
        engine.faults.update({"load_status": 500})
    name = voice(town, "acme/support")
    verdicts = second.gateway.state.catalog.verdicts
    while name not in verdicts:
        assert (await refused(town)).code == "load_failed"
        await asyncio.sleep(0.2)
    tried = sum(len(engine.state.admin) for engine in town.engines)
    for each in (town, second):
        error = await refused(each)
        assert error.code == "load_failed"
        assert "acme/support@v1 could not be loaded" in error.message
    assert sum(len(engine.state.admin) for engine in town.engines) == tried
    version = await shown(second.gateway)
    assert (version["state"], version["verdict"]["attempts"]) == ("failed", 3)

    for engine in town.engines:
        engine.faults.reset()
    await release(second.gateway)  # else the reconciler in a minute
    await until(lambda: name not in town.gateway.state.catalog.verdicts)
    assert name in await ask(second, "acme")
    assert (await shown(second.gateway))["trusted"] is False


@pytest.mark.parametrize("fault", [{"probe_status": 500}, {"probe_delay": 60.0}], ids=["500", "stalled"])
async def test_a_probe_that_fails_on_one_engine_sends_the_load_to_another(
    tmp_path: Path, valkey_url: str, prefix: str, fault: dict
):
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, load_timeout=0.5) as gateway,
        MockEngine() as a,
        MockEngine() as b,
    ):
        await gateway.add_engine("a", a.url)
        await gateway.add_engine("b", b.url)
        await gateway.add_tenant("acme")
        version = await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        town = Town(gateway, a, b, tmp_path)
        a.faults.update(fault)
        assert version.engine_name in await ask(town, "acme")
        (call,) = town.calls()
        assert call in b.state.calls
        assert gateway.state.catalog.verdicts == {}


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
        town = Town(gateway, a, b, tmp_path)
        a.faults.update({"probe_as": "base", "probe_delay": 0.5})
        running = asyncio.create_task(refused(town))
        await a.until(lambda state: state.verifications[version.engine_name] == 1)
        os.kill(valkey.pid, signal.SIGKILL)
        assert (await running).code == "store_unavailable"
        await until(lambda: not gateway.state.follower.connected)
        assert (await refused(town)).code == "store_unavailable"

        await asyncio.to_thread(valkey.start)
        await until(lambda: gateway.state.follower.connected)
        assert not gateway.state.residency.holders(version.engine_name)
        assert (await eventually_refused(town, "version_quarantined")) == "version_quarantined"


async def eventually_refused(town: Town, code: str) -> str:
    """The claim of the load that was cut off must lapse first."""
    for _ in range(10):
        said = (await refused(town)).code
        if said == code:
            break
    return said


async def test_a_worker_killed_between_load_and_confirmation_is_succeeded(
    town: Town, tmp_path: Path, valkey_url: str, prefix: str
):
    """Its claim lapses; who takes over finds the name loaded, and verifies it all the same."""
    for engine in town.engines:
        engine.faults.update({"probe_as": "base", "probe_delay": 60.0})
    name = voice(town, "acme/support")
    async with running_gateway(tmp_path / "second", valkey_url, prefix) as doomed:
        doomed.keys = town.gateway.keys
        task = asyncio.create_task(ask(Town(doomed, town.a, town.b, tmp_path), "acme"))
        await until(lambda: sum(e.state.verifications["base"] for e in town.engines) == 1)
        task.cancel()
        doomed.state.router._loader._flights[name].task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert any(name in engine.state.adapters for engine in town.engines)
    for engine in town.engines:
        engine.faults.update({"probe_delay": 0.0})
    assert await eventually_refused(town, "version_quarantined") == "version_quarantined"
    await until(lambda: not any(name in engine.state.adapters for engine in town.engines))


async def test_without_verification_what_is_loaded_is_believed(tmp_path: Path, valkey_url: str, prefix: str):
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, verify_loads=False) as gateway,
        MockEngine() as a,
    ):
        await gateway.add_engine("a", a.url)
        await gateway.add_tenant("acme")
        version = await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        a.faults.update({"probe_as": "base"})
        assert version.engine_name in await ask(Town(gateway, a, a, tmp_path), "acme")
        assert a.state.verifications.total() == 0


async def test_results_are_counted(town: Town):
    town.a.faults.update({"probe_as": "base", "probe_only": voice(town, "acme/support")})
    town.b.faults.update({"probe_as": "base", "probe_only": voice(town, "acme/support")})
    await refused(town)
    await ask(town, "bolt")
    async with town.gateway.http() as http:
        text = (await http.get("/metrics")).text
    assert 'florin_verdict_info{about="acme/support@v1",code="answers_like_base"} 1.0' in text
    assert 'florin_verifications_total{result="quarantined"} 1.0' in text
    assert 'florin_verifications_total{result="first"} 1.0' in text
    assert "florin_verification_seconds_count 2.0" in text
