"""A canary on real vLLM engines rolls itself back under load, with nobody's stream interrupted.

It is really slow: it is resident on one engine and the live version on the other, and the processes of the
canary's engine are stopped for three quarters of the time, as a throttled or shared processor would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psutil

from deploy.demo.engines import DemoEngine, Fleet
from tests.engine.test_versions import PROMISED_SECONDS, V1, V2, Installation, ask, site, stream

__all__ = ["site"]  # a fixture

log = logging.getLogger(__name__)

LISTENERS = 8
STOPPED, RUNNING = 0.15, 0.05
"""Seconds: short, so that it is slow and neither down nor hung."""


@dataclass
class Heard:
    began: float
    ended: float
    label: str


@contextlib.asynccontextmanager
async def throttled(engine: DemoEngine) -> AsyncIterator[None]:
    assert engine.process is not None
    parent = psutil.Process(engine.process.pid)
    processes = [parent, *parent.children(recursive=True)]

    async def throttle() -> None:
        while True:
            for process in processes:
                process.suspend()
            await asyncio.sleep(STOPPED)
            for process in processes:
                process.resume()
            await asyncio.sleep(RUNNING)

    task = asyncio.create_task(throttle())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        for process in processes:
            process.resume()


async def apart(site: Installation) -> None:
    """The live version on e0, and the canary on e1; nothing is loaded anywhere else any more."""

    async def state(engine: str, state: str) -> None:
        await asyncio.to_thread(
            site.gateway.call, "PUT", f"/admin/v1/engines/{engine}/state", {"state": state}
        )

    await state("e1", "cordoned")
    async with site.caller() as client:
        label, _, _ = await ask(client, site.model.questions[0])
    assert label == V1
    await state("e0", "cordoned")
    await state("e1", "active")
    await site.admin("PUT", "/live", {"version": "v2", "weight": 1})
    await state("e1", "cordoned")
    placed = (await site.admin("GET", ""))["placed"]
    assert {(p["engine"], p["version"]) for p in placed} == {("e0", "v1"), ("e1", "v2")}


async def test_a_slow_canary_rolls_itself_back_and_no_stream_is_interrupted(
    site: Installation, clean_fleet: Fleet
):
    heard: list[Heard] = []
    over = asyncio.Event()

    async def listener(number: int) -> None:
        questions = site.model.questions
        async with site.caller() as client:
            turn = number
            while not over.is_set():
                question, began = questions[turn % len(questions)], time.monotonic()
                label, text = await stream(client, question)  # whole, and without an error
                assert text == site.expected(label, question), (label, text)
                heard.append(Heard(began, time.monotonic(), label))
                turn += 1

    async def rolled_back() -> float:
        while (await site.admin("GET", ""))["canary"] is not None:
            await asyncio.sleep(0.1)
        return time.monotonic()

    await apart(site)
    guard = {"action": "rollback", "max_latency_ratio": 1.5, "min_requests": 10, "window_seconds": 120}
    async with throttled(clean_fleet.engines[1]), asyncio.TaskGroup() as group:
        for number in range(LISTENERS):
            group.create_task(listener(number))
        began = time.monotonic()
        await site.admin("PUT", "/live", {"version": "v2", "weight": 50, "guard": guard, "wait": False})
        async with asyncio.timeout(180):
            at = await rolled_back()
            while not any(h.began > at + PROMISED_SECONDS for h in heard):
                await asyncio.sleep(0.1)
        over.set()
    outcome = (await site.admin("GET", ""))["outcome"]
    log.info("%.1f s and %d answers until: %s", at - began, len(heard), outcome["reason"])
    assert (outcome["verdict"], outcome["version"]) == ("rollback", "v2")
    assert "live version" in outcome["reason"]
    assert {h.label for h in heard} == {V1, V2}
    assert any(h.label == V2 and h.began < at < h.ended for h in heard)  # it went on to its end
    assert {h.label for h in heard if h.began > at + PROMISED_SECONDS} == {V1}
    audit = await asyncio.to_thread(site.gateway.call, "GET", "/admin/v1/audit", None)
    by_guard = [(e["action"], e["version"]) for e in audit["data"] if e["actor"] == "guard"]
    assert by_guard == [("adapter.rollback", "v1")]
