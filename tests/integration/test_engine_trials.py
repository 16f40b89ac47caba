"""An engine of a new version joins a fleet under load: it is drained if it is worse, and else becomes one of
them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.model import Engine, dump
from adapters.store.protocol.registry import Change
from loadtests.mock_engine import MockEngine
from tests.integration.test_canary_guard import audit, load
from tests.integration.test_versions import NAME, Fleet
from tests.support.harness import running_gateway
from tests.support.waiting import until


@pytest.fixture
async def site(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Fleet]:
    """Two engines of the old version, which hold an adapter, and one of the new, which is not registered."""
    async with (
        running_gateway(tmp_path / "one", valkey_url, prefix, placement_interval=0.1) as gateway,
        MockEngine(max_loras=3) as a,
        MockEngine(max_loras=3) as b,
        MockEngine(max_loras=3, version="0.33.0") as new,
        Fleet([gateway, gateway], {"a": a, "b": b, "new": new}, tmp_path) as fleet,
    ):
        for name in "ab":
            await gateway.add_engine(name, fleet.engines[name].url, slots=3, version="0.32.0")
        await gateway.add_tenant("acme")
        await fleet.add_version()
        yield fleet


async def join(site: Fleet, **guard: object) -> None:
    """Register the new engine, to be tried with 30 % of the requests."""
    body = {
        "name": "new", "url": site.engines["new"].url, "base": "base", "gpu_type": "h100", "slots": 3,
        "max_rank": 8, "trial": 30,
    }  # fmt: skip
    async with site.first.http() as http:
        answer = await http.post("/admin/v1/engines", json=body)
    assert (answer.status_code, answer.json()["trial"]["share"]) == (201, 30), answer.text
    engine = current(site)
    assert engine.trial is not None
    terms = replace(engine.trial.guard, min_requests=10, max_latency_ratio=1e9, **guard)
    new = replace(engine, trial=replace(engine.trial, guard=terms))
    await site.first.commit(Change("engine", "new", dump(new)))


def current(site: Fleet) -> Engine:
    return site.first.state.catalog.engines["new"]


def served(site: Fleet) -> int:
    return sum(call.model == site.voice(f"{NAME}@v1") for call in site.engines["new"].state.calls)


async def test_a_new_version_that_fails_is_drained_and_no_caller_notices(site: Fleet):
    site.engines["new"].faults.update({"status": 500, "message": "CUDA error"})
    async with load(site) as answers:
        await until(lambda: len(answers) > 10)
        await join(site)
        await until(lambda: current(site).state == "draining")
        failed, seen = served(site), len(answers)
        await until(lambda: len(answers) > seen + 20)
    site.check([answer for _, answer in answers])
    assert served(site) <= failed + 6  # those that were on their way
    [entry] = await audit(site)
    assert (entry.note.action, entry.note.subject) == ("engine.trial", "new")
    reason = entry.note.details["reason"]
    assert reason.startswith("100.0% of its ")
    [condition] = [c for c in site.first.state.conditions.now() if c.code == "engine_trial_stopped"]
    assert condition.message == f"The guard of its trial (vLLM 0.33.0) drained it. {reason}"
    async with site.first.http() as http:
        trial = (await http.get("/admin/v1/engines/new/trial")).json()
        assert (trial["verdict"], trial["reason"], trial["own"]["error_rate"]) == ("drain", reason, 1.0)
        back = (await http.put("/admin/v1/engines/new/state", json={"state": "active"})).json()
    assert (back["state"], back["trial"]) == ("active", None)  # the operator knows better


async def test_a_new_version_that_computes_something_else_is_drained_before_it_serves(site: Fleet):
    site.engines["new"].faults.update({"probe_as": "other"})
    await site.ask()
    await join(site)
    await until(lambda: current(site).state == "draining")
    trial = current(site).trial
    assert trial is not None
    assert f"{NAME}@v1 no longer answers as it did when it was first loaded" in trial.stopped
    assert served(site) == 0
    assert not [s for s in site.first.state.catalog.serving_statuses.values() if s.version]  # no quarantine
    assert (await site.ask()).status == 200


async def test_a_new_version_that_is_as_good_becomes_one_of_the_fleet(site: Fleet):
    async with load(site) as answers:
        await join(site, window_seconds=1)
        await until(lambda: current(site).trial is None)
        seen = served(site)
        await until(lambda: served(site) > seen)
    site.check([answer for _, answer in answers])
    assert current(site).state == "active"
    assert [(e.note.action, e.note.details["verdict"]) for e in await audit(site)] == [
        ("engine.trial", "accept")
    ]
