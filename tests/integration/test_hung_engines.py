"""Engines that hang and say that they are well: their cores stop, as SIGSTOP stops vLLM's, and their HTTP servers go
on answering health checks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import select

from gateway.metering.ledger.schema import engine_probes
from gateway.routing.lost_requests import Patience
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask, stream
from tests.support import alerting
from tests.support.harness import Gateway, running_gateway
from tests.support.missing import optional
from tests.support.promtool import NoPromtoolError
from tests.support.waiting import until

HANG_SECONDS = 1.0
SOON = 60.0
"""Seconds for what should take two, on a quiet machine."""


@pytest.fixture
async def gateway(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Gateway]:
    async with quick(tmp_path / "state", valkey_url, prefix) as running:
        yield running


def quick(
    state_dir: Path, url: str, prefix: str, **settings: Any
) -> contextlib.AbstractAsyncContextManager[Gateway]:
    settings = {"hang_timeout": HANG_SECONDS, "ejection_time": 0.5, "engine_idle_timeout": 2.0} | settings
    return running_gateway(state_dir, url, prefix, **settings)


def holder_of(deployment: Deployment) -> tuple[str, MockEngine]:
    ((name, engine),) = [(n, e) for n, e in (("a", deployment.a), ("b", deployment.b)) if e.state.calls]
    return name, engine


async def admin(gateway: Gateway, path: str) -> Any:
    async with gateway.http() as http:
        answer = await http.get(path)
    return answer.text if path == "/metrics" else answer.json()


async def healths(gateway: Gateway) -> dict[str, str]:
    engines = (await admin(gateway, "/admin/v1/engines"))["data"]
    return {engine["name"]: engine["health"] for engine in engines}


async def test_a_hung_holder_costs_no_request(deployment: Deployment, tmp_path: Path):
    """One engine holds the adapter, and others idle."""
    gateway = deployment.gateway
    await ask(deployment, "acme")
    name, engine = holder_of(deployment)
    other = deployment.b if engine is deployment.a else deployment.a
    engine.faults.update({"event_delay": 0.2})
    calm = await admin(gateway, "/metrics")
    begun = asyncio.ensure_future(stream(deployment, "acme", max_tokens=200, logprobs=True))  # not resumable
    await engine.until(lambda state: len(state.calls) == 2 and state.calls[-1].sent > 2)
    await until(lambda: any(lease.begun for lease in gateway.state.pool.state(name).leases))
    engine.stop_core()
    asks = [(ask, stream)[i % 2](deployment, "acme") for i in range(10)]  # too few for a second replica
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*asks)
    assert all(voice(deployment, "acme/support") in answer for answer in answers)
    async with asyncio.timeout(SOON):
        await ask(deployment, "acme")  # at once: without a failover, as the records say below
    assert len(other.state.calls) == 11

    # What can be seen.
    assert (await healths(gateway))[name] == "ejected"
    row = next(e for e in (await admin(gateway, "/admin/v1/placement"))["data"] if e["engine"] == name)
    assert row["health"] == "ejected"
    assert "found inactive" in row["hang"]["reason"]
    explained = (await admin(gateway, "/admin/v1/explain/acme/support"))["decision"]["candidates"]
    assert next(c for c in explained if c["engine"] == name)["reason"].startswith("hangs: ")
    ready = await admin(gateway, "/readyz")
    assert (ready["status"], ready["conditions"]) == ("degraded", ["engine_hung"])
    found = (await admin(gateway, "/admin/v1/doctor"))["data"]
    assert [(d["status"], d["subject"]) for d in found if d["check"] == "engine_hung"] == [("problem", name)]
    during = await admin(gateway, "/metrics")
    assert f'florin_engine_hung{{engine="{name}"}} 1.0' in during
    assert f'florin_engine_ejections_total{{engine="{name}"}} 1.0' in during
    with optional(NoPromtoolError):
        assert alerting.silent("FlorinEngineHung", calm, tmp_path)
        assert alerting.fires("FlorinEngineHung", calm, during, tmp_path)

    # The stream that had begun is ended; GPU time is booked all the while; then it recovers.
    with pytest.raises(openai.APIError, match="failed before the answer was complete"):
        await begun
    await until(lambda: gateway.state.pool.state(name).ejection.ejections > 1, seconds=SOON)
    engine.core.resume()
    await until(lambda: gateway.state.pool.state(name).usable, seconds=SOON)
    assert f'florin_engine_hung{{engine="{name}"}} 0.0' in await admin(gateway, "/metrics")
    outcomes = [record.outcome for record in await gateway.usage("acme")]
    assert sorted(outcomes) == ["engine_error"] + ["failover"] * 10 + ["ok"] * 12
    assert "engine_hung" not in (await admin(gateway, "/readyz"))["conditions"]


async def test_with_one_engine_requests_fail_at_once_and_it_is_back_as_soon_as_it_works(
    deployment: Deployment,
):
    await deployment.gateway.set_state("b", "draining")
    await ask(deployment, "acme")
    deployment.a.stop_core()
    for _ in range(2):  # the first waits until it is certain
        async with asyncio.timeout(SOON):
            with pytest.raises(openai.InternalServerError) as caught:
                await ask(deployment, "acme")
        assert caught.value.code == "engine_hung"
        assert int(caught.value.response.headers["retry-after"]) >= 1
    assert (await healths(deployment.gateway))["a"] == "hung"
    assert not deployment.gateway.state.pool.state("a").ejected
    deployment.a.core.resume()
    await until(lambda: deployment.gateway.state.pool.state("a").usable, seconds=SOON)
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")


async def test_a_load_that_hangs_is_made_on_another_engine(deployment: Deployment):
    """Nobody knows of the hang before the load."""
    deployment.a.stop_core()
    async with asyncio.timeout(SOON):
        assert voice(deployment, "acme/support") in await ask(deployment, "acme")
        assert voice(deployment, "bolt/support") in await ask(deployment, "bolt")
        assert voice(deployment, "corgi/support") in await ask(deployment, "corgi")
    assert {engine for engine, _ in deployment.loads()} == {"b"}
    deployment.a.core.resume()


async def test_a_probe_acquits_an_engine_whose_metrics_say_nothing_and_is_metered(
    deployment: Deployment,
):
    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    engine.faults.update({"metrics": "nothing 1\n"})
    engine.faults.update({"stop_at": "headers", "stop_how": "hang", "times": 1})
    before = await probe_rows(deployment.gateway)
    asked = asyncio.ensure_future(ask(deployment, "acme"))
    await engine.until(
        lambda state: any(call.body.get("max_tokens") == 1 for call in state.calls), timeout=SOON
    )
    await until(
        lambda: deployment.gateway.state.pool.state("a").ejection.false_alarms or engine is deployment.b
    )
    assert all(deployment.gateway.state.pool.state(name).usable for name in "ab")
    asked.cancel()
    (row,) = [row for row in await probe_rows(deployment.gateway) if row not in before]
    assert row.completion_tokens == 1


async def probe_rows(gateway: Gateway) -> list[Any]:
    state = gateway.state
    await state.hangs._spent.func.__self__.close()
    with state.ledger.read() as connection:
        return list(connection.execute(select(engine_probes)))


@pytest.mark.parametrize("way", [ask, stream])
async def test_a_request_that_a_working_engine_has_lost_is_answered_by_another(
    deployment: Deployment, way: Callable[..., Awaitable[str]]
):
    """Though it has waited for longer than a placement may take."""
    await ask(deployment, "acme")
    _, engine = holder_of(deployment)
    engine.faults.update({"stop_at": "first_event", "stop_how": "hang", "times": 1})
    hangs, retries = deployment.gateway.state.hangs, deployment.gateway.state.lifecycle.retries
    hangs.reconfigure(rules=replace(hangs.rules, timeout=60), patience=Patience(first_byte=2.5, idle=60))
    retries.timeout = 2.0
    async with asyncio.timeout(SOON):
        assert voice(deployment, "acme/support") in await way(deployment, "acme")
    assert [r.outcome for r in await deployment.gateway.usage("acme")] == ["ok", "failover", "ok"]


async def test_the_gateway_stops_though_engines_hang(deployment: Deployment):
    await ask(deployment, "acme")
    for engine in deployment.engines:
        engine.stop_core()
    asks = [asyncio.ensure_future(ask(deployment, "acme")) for _ in range(3)]
    await until(lambda: sum(state.in_flight for state in deployment.gateway.state.pool.states()) == 3)
    results = await asyncio.gather(*asks, return_exceptions=True)
    assert {type(r) for r in results} == {openai.InternalServerError}
    assert {r.code for r in results} == {"engine_hung"}


async def test_a_hung_engine_that_misses_health_checks_too_is_not_used_when_it_answers_them_again(
    deployment: Deployment,
):
    await ask(deployment, "acme")
    name, engine = holder_of(deployment)
    state = deployment.gateway.state.pool.state(name)
    engine.stop_core()
    async with asyncio.timeout(SOON):
        await ask(deployment, "acme")
    engine.faults.update({"health_status": 503})
    await until(lambda: state.healthy is False, seconds=SOON)
    assert (await healths(deployment.gateway))[name] == "down"
    engine.faults.reset()
    await until(lambda: state.healthy, seconds=SOON)
    assert state.ejection.hangs
    async with asyncio.timeout(SOON):
        await ask(deployment, "acme")
    assert sum(call.path == "/v1/chat/completions" for call in engine.state.calls) == 2  # the others: probes
