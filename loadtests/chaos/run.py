"""One run: a cluster, a crowd of clients, the schedule and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx2

from loadtests.chaos import checks
from loadtests.chaos.checks import Window
from loadtests.chaos.evidence import limits, look, read_ledger, settle
from loadtests.chaos.faults import FAULTS
from loadtests.chaos.keys import Locksmith
from loadtests.chaos.schedule import Event, conflict
from loadtests.chaos.voices import Heard
from loadtests.chaos.world import ChaosCluster
from loadtests.fuzz.judge import Log

QUIET_S = 2.0
"""Seconds of load before the first fault and after the last."""
SETTLE_S = 30.0
"""Seconds within which all parts must be consistent and healthy again."""
SHIP_S = 60.0
BETWEEN_S = 1.0
"""Seconds between a repair and a conflicting fault."""

Progress = Callable[[str, int], None]
"""Receives the current activity and the number of finished faults."""


@dataclass
class Result:
    """The result, filled in during the run."""

    schedule: Sequence[Event]
    zero: float = 0.0
    """Start of the schedule, CLOCK_MONOTONIC."""
    seconds: float = 0.0
    windows: list[Window] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    records: int = 0
    keys: int = 0
    settled_s: float = 0.0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """Invariant → its violations."""

    @property
    def broken(self) -> bool:
        return any(self.wrong.values())


async def run(
    world: ChaosCluster,
    schedule: Sequence[Event],
    *,
    seed: int,
    customers: int,
    progress: Progress,
    stop: asyncio.Event | None = None,
) -> Result:
    """Run the schedule on a running `world` and judge the evidence, all of which is in the result. `stop`:
    inject no more faults."""
    stop = stop or asyncio.Event()
    result = Result(schedule)
    draw = random.Random(seed)
    started = time.monotonic()
    crowd = world.crowd(random.Random(draw.random()))
    locksmith = Locksmith(world, random.Random(draw.random()))
    try:
        progress("learning the adapters' answers", 0)
        voices = await crowd.learn()
        first = await look(world)
        async with asyncio.TaskGroup() as group:
            group.create_task(crowd.run(customers))
            group.create_task(locksmith.run())
            try:
                await asyncio.sleep(QUIET_S)
                await _strike(world, schedule, result, progress, stop)
                await asyncio.sleep(QUIET_S)
            finally:
                crowd.stop()
                locksmith.stop()
    finally:
        await crowd.close()
    result.heard, result.keys = crowd.heard, len(locksmith.made)
    progress("settling", len(schedule))
    workers = world.houses[0].workers
    bounds, due = limits(first), checks.conditions_due(result.windows, workers, time.monotonic())
    unsettled, result.settled_s = await settle(
        world, first.problems, lambda state: checks.unsettled(state, bounds, due), SETTLE_S
    )
    progress("reading the ledger", len(schedule))
    ledger = await read_ledger(world, SHIP_S)
    silent: list[str] = []
    reached: set[str] = set()
    try:
        reached = await asyncio.to_thread(world.engines.reached)
    except httpx2.HTTPError as error:
        silent = [f"an engine does not report its attempts: {error!r}"]
    result.records = len(ledger.records)
    elapsed = time.monotonic() - started
    result.wrong = {
        "voices": checks.wrong_voices(crowd.heard, voices),
        "errors": checks.unexcused(crowd.heard, result.windows, workers, result.zero),
        "billed once": checks.misbooked(crowd.heard, ledger.records),
        "no duplicates": checks.repeated(ledger.records),
        "all recorded": [*checks.unrecorded(reached, ledger.records), *_late(ledger.late), *silent],
        "balance": checks.unbalanced(ledger.imbalances, ledger.provisioned, elapsed + _START_S),
        "settled": unsettled,
        "starts": [name for house in world.houses for name in house.failed_starts],
        "keys": checks.lost_keys(await locksmith.refused(), result.windows),
        "logs": [news for house in world.houses if (news := Log(house.log).news())],
    }
    result.seconds = time.monotonic() - started
    return result


_START_S = 30.0
"""Seconds that engines may have existed before the load began, during registration."""


def _late(gateways: Sequence[str]) -> list[str]:
    return [f"{gateway} still has unshipped records after {SHIP_S:.0f} s" for gateway in gateways]


async def _strike(
    world: ChaosCluster, schedule: Sequence[Event], result: Result, progress: Progress, stop: asyncio.Event
) -> None:
    """Inject each fault at its time, or later if the repair of an earlier one requires it."""
    result.zero = time.monotonic()
    late = 0.0
    running: dict[asyncio.Task[None], Event] = {}
    over: list[Window] = result.windows
    async with asyncio.TaskGroup() as group:
        for event in schedule:
            due = result.zero + event.start + late
            while not stop.is_set() and (time.monotonic() < due or _blocked(event, running, over)):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.05)
            if stop.is_set():
                break
            late = max(late, time.monotonic() - result.zero - event.start)
            progress(f"{event.kind}, {event.where}", len(over))
            task = group.create_task(_fault(world, event, over))
            running[task] = event
            task.add_done_callback(running.pop)


def _blocked(event: Event, running: dict[asyncio.Task[None], Event], over: Sequence[Window]) -> bool:
    recent = [w.event for w in over[-8:] if time.monotonic() - w.ended < BETWEEN_S]
    return any(conflict(event.kind, other.kind) for other in (*running.values(), *recent))


async def _fault(world: ChaosCluster, event: Event, over: list[Window]) -> None:
    began = time.monotonic()
    async with FAULTS[event.kind](world, event):
        await asyncio.sleep(event.hold)
    over.append(Window(event, began, time.monotonic()))
