"""Plans which faults occur when, where and for how long. Pure: the same seed gives the same schedule."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RECOVERY: Final = 4.0
"""Seconds after a fault's end during which its victim is spared."""
GAP: Final = (0.4, 2.0)
"""Minimum and maximum seconds between the beginnings of two faults."""


@dataclass(frozen=True, slots=True)
class Kind:
    role: str
    """Its target: `engine`, `worker`, `gateway`, `redis` or `postgres`."""
    hold: tuple[float, float]
    """Minimum and maximum duration in seconds."""
    weight: float = 1.0
    kill: bool = False
    """Kills a process with SIGKILL."""
    alone: bool = False
    """Excludes all other faults while it lasts."""
    errors: frozenset[str] = frozenset()
    """Errors that clients may see: codes, or `connection` for a lost connection."""
    cold: frozenset[str] = frozenset()
    """Errors that only clients may see whose adapter needs a decision, such as a load."""


_BEGUN = frozenset({"stream_interrupted"})
_UNDECIDED = frozenset({"store_unavailable", "registry_regressed"})
_CONNECTION = frozenset({"connection"})

KINDS: Final[dict[str, Kind]] = {
    "engine-kill": Kind("engine", (0.3, 3), weight=4, kill=True, errors=_BEGUN),
    "engine-stop": Kind("engine", (3, 8), errors=_BEGUN),
    "engine-hang": Kind("engine", (6, 12), errors=_BEGUN),
    "engine-cut": Kind("engine", (0.5, 4), errors=_BEGUN),
    "engine-hole": Kind("engine", (3, 8), errors=_BEGUN),
    "engine-slow": Kind("engine", (2, 5)),
    "worker-kill": Kind("worker", (0, 0), weight=5, kill=True, errors=_CONNECTION),
    "worker-stop": Kind("worker", (0.5, 5)),
    # Its workers exit when they notice, and answer waiting clients with an error.
    "gateway-kill": Kind("gateway", (0.2, 2), weight=2, kill=True, errors=_CONNECTION | {"shutting_down"}),
    "redis-kill": Kind("redis", (0.3, 4), weight=2, kill=True, cold=_UNDECIDED),
    "redis-stop": Kind("redis", (1, 6), cold=_UNDECIDED),
    "redis-cut": Kind("redis", (1, 6), cold=_UNDECIDED),
    "redis-slow": Kind("redis", (2, 5), cold=_UNDECIDED),
    "redis-flushed": Kind("redis", (2, 5), alone=True, cold=_UNDECIDED),
    "redis-failover": Kind("redis", (0.5, 2), kill=True, alone=True, cold=_UNDECIDED),
    "postgres-kill": Kind("postgres", (0.5, 4), weight=2, kill=True),
    "postgres-stop": Kind("postgres", (1, 6)),
    "postgres-cut": Kind("postgres", (1, 6)),
    "disk-full": Kind("gateway", (2, 5), errors=frozenset({"metering_unavailable"})),
    "disk-slow": Kind("gateway", (2, 5)),
    "clock-step": Kind("gateway", (2, 6)),
}
"""All faults, with the errors that clients may see. An engine's failure costs only answers that have begun, a
Redis failure only requests that need a decision, a database or clock failure nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    kind: str
    victim: int
    """Index among the targets of its role."""
    start: float
    """Seconds after the start."""
    hold: float
    detail: float
    """Additional random number from 0 to 1."""

    @property
    def end(self) -> float:
        return self.start + self.hold

    @property
    def role(self) -> str:
        return KINDS[self.kind].role

    @property
    def where(self) -> str:
        return f"{self.role} {self.victim}"

    def __str__(self) -> str:
        return f"{self.start:7.2f} s  {self.kind:<14} {self.where} for {self.hold:.2f} s"


def plan(
    seed: int,
    counts: Mapping[str, int],
    *,
    kinds: Collection[str],
    kills: int = 0,
    seconds: float = 0.0,
    once: bool = False,
) -> list[Event]:
    """Plan faults until `kills` processes have been killed and `seconds` have passed; with `once`, until each
    kind has occurred. `counts`: number of targets per role. No kind repeats before all have occurred."""
    if kills and not any(KINDS[kind].kill for kind in kinds):
        raise ValueError(
            "None of these faults kills a process: add one that does, or give a number of seconds."
        )
    draw = random.Random(seed)
    able = [kind for kind in KINDS if kind in kinds and counts.get(KINDS[kind].role)]
    fresh = draw.sample(able, len(able))
    events: list[Event] = []
    killed, now = 0, 0.0
    while able and (killed < kills or now < seconds or (once and fresh)):
        kind = fresh.pop() if fresh else draw.choices(able, [KINDS[k].weight for k in able])[0]
        what = KINDS[kind]
        victim = draw.randrange(counts[what.role])
        hold = round(draw.uniform(*what.hold), 2)
        now = max(now + draw.uniform(*GAP), _free(events, kind))
        events.append(Event(len(events) + 1, kind, victim, round(now, 2), hold, draw.random()))
        killed += what.kill
    return events


def _free(events: Sequence[Event], kind: str) -> float:
    """Earliest start of the next fault, so that the consequences of faults can be told apart."""
    return max((event.end + RECOVERY for event in events if conflict(event.kind, kind)), default=0.0)


def conflict(first: str, second: str) -> bool:
    """Whether two faults must not overlap: one target per role, so that the others carry the load. Workers
    belong to gateways, and an engine's failure requires loads, which need Redis."""
    kinds = KINDS[first], KINDS[second]
    roles = {kind.role for kind in kinds}
    return (
        any(kind.alone for kind in kinds)
        or len(roles) == 1
        or roles <= {"gateway", "worker"}
        or roles == {"engine", "redis"}
    )
