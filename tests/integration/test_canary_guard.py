"""Guarded canaries under load on two workers of one fleet: rolled back, held, or raised by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from adapters.model import Guard, dump
from adapters.store.protocol.registry import AuditEntry, Change
from tests.integration.test_versions import NAME, Answer, Fleet, fleet  # noqa: F401 - a fixture
from tests.support.waiting import until

GUARD = {"action": "rollback", "min_requests": 10, "window_seconds": 20}


@contextlib.asynccontextmanager
async def load(site: Fleet) -> AsyncIterator[list[tuple[int, Answer]]]:
    """Callers on both workers, with many end users. Yields the answers so far, each with how many there were
    when it was asked for."""
    answers: list[tuple[int, Answer]] = []
    over = asyncio.Event()

    async def caller(number: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            user, worker, begun = f"user-{number}-{turn}", site.workers[number % 2], len(answers)
            answers.append((begun, await site.ask(worker, stream=turn % 2 == 0, user=user, tokens=4)))

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(caller(number))
        yield answers
        over.set()


async def audit(site: Fleet) -> list[AuditEntry]:
    return [e for e in await site.first.state.store.audit() if e.note.actor == "guard"]


async def test_a_canary_that_fails_rolls_itself_back_under_load(fleet: Fleet):  # noqa: F811 - the fixture
    bad = fleet.versions[1]
    for engine in fleet.engines.values():
        engine.faults.update({"status": 500, "message": "CUDA error", "only": bad.engine_name})
    answer = await fleet.promote("v2", weight=50, guard=GUARD)
    assert answer.json()["canary"]["guard"]["action"] == "rollback"
    async with load(fleet) as answers:
        await until(lambda: all(fleet.adapter(w).canary is None for w in fleet.workers))
        seen = len(answers)
        await until(lambda: len(answers) > seen + 50)
    later = [a for begun, a in answers if begun > seen]
    fleet.check(later)
    assert {a.label for a in later} == {f"{NAME}@v1"}  # its users are back on the live version
    [entry] = await audit(fleet)
    assert (entry.note.action, entry.note.version) == ("adapter.rollback", "v1")
    assert entry.note.details["reason"].startswith("100.0% of its ")
    shown = (await fleet.admin("GET", "")).json()
    assert (shown["canary"], shown["comparison"]) == (None, None)
    assert shown["outcome"] | {"decided_at": 0} == {
        "verdict": "rollback", "version": "v2", "reason": entry.note.details["reason"], "decided_at": 0,
    }  # fmt: skip
    for worker in fleet.workers:
        [found] = [c for c in worker.state.conditions.now() if c.code == "canary_stopped"]
        assert found.subject == f"{NAME}@v2"
    # To promote the live version again dismisses it.
    assert (await fleet.promote("v1")).json()["outcome"] is None


async def test_a_slow_canary_is_held_and_nothing_raises_it_but_force(fleet: Fleet):  # noqa: F811
    slow = fleet.versions[1].engine_name
    for engine in fleet.engines.values():
        engine.faults.update({"event_delay": 0.05, "first_byte_delay": 0.2, "delay_only": slow})
    guard = GUARD | {"action": "hold", "then": [90]}
    assert (await fleet.promote("v2", weight=50, guard=guard)).status_code == 200
    async with load(fleet) as answers:
        await until(lambda: all(fleet.adapter(w).held for w in fleet.workers))
        fleet.check([a for _, a in answers])
    shown = (await fleet.admin("GET", "")).json()
    assert "token" in shown["canary"]["held"]
    assert shown["comparison"]["verdict"] == "hold"
    assert (
        shown["comparison"]["canary"]["first_token"]["p50"]
        > shown["comparison"]["live"]["first_token"]["p50"]
    )
    refused = await fleet.promote("v2", weight=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "canary_held")
    assert (await fleet.promote("v2")).json()["error"]["code"] == "canary_held"
    lower = (await fleet.promote("v2", weight=5)).json()["canary"]
    assert (lower["weight"], lower["held"]) == (5, shown["canary"]["held"])
    forced = (await fleet.promote("v2", weight=60, force=True)).json()["canary"]
    assert (forced["weight"], forced["held"], forced["guard"]["action"]) == (60, None, "hold")
    [entry] = await audit(fleet)
    assert entry.note.action == "adapter.hold"


async def test_a_clean_canary_is_made_live_step_by_step(fleet: Fleet):  # noqa: F811
    assert (await fleet.promote("v2", weight=30)).status_code == 200
    guard = Guard("rollback", min_requests=2, max_latency_ratio=1e9, window_seconds=1, then=(60, 100))
    adapter = fleet.adapter()
    assert adapter is not None
    guarded = replace(adapter, guard=guard)  # with a window that is too short for the API
    await fleet.first.commit(Change("adapter", NAME, dump(guarded)))
    async with load(fleet) as answers:
        await until(lambda: all(fleet.adapter(w).live == 2 for w in fleet.workers))
        seen = len(answers)
        await until(lambda: len(answers) > seen + 20)
    fleet.check([a for _, a in answers])
    assert {a.label for begun, a in answers if begun > seen} == {f"{NAME}@v2"}
    said = [(e.note.action, e.note.details.get("weight")) for e in await audit(fleet)]
    assert said == [("adapter.canary", 60), ("adapter.promote", None)]
    shown = (await fleet.admin("GET", "")).json()
    assert (shown["live"], shown["canary"], shown["outcome"]["verdict"]) == ("v2", None, "promote")
