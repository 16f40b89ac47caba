"""How long a request may wait for an engine that works: a matter of silence, not of age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.model import Engine
from gateway.routing.engine_state import EngineState, Lease
from gateway.routing.hang_detection import HangDetector
from gateway.routing.lost_requests import Patience, Wait, judge
from gateway.routing.outlier_ejection import Rules
from tests.unit.gateway.routing.conftest import Clock

PATIENCE = Patience(first_byte=120.0, idle=60.0)
LOST = Wait(begun=False, silent=121, inactive=121, visible=True, queued=0)
STALLED = Wait(begun=True, silent=61, inactive=0, visible=True, queued=0)


@pytest.mark.parametrize(
    ("wait", "changes", "reason"),
    [
        (LOST, {}, "first_byte"),
        (LOST, {"inactive": 119}, ""),
        (LOST, {"silent": 119}, ""),
        (LOST, {"silent": 3600, "inactive": 1}, ""),
        (LOST, {"visible": False}, ""),
        (STALLED, {}, "idle"),
        (STALLED, {"silent": 59}, ""),
        (STALLED, {"queued": 1}, ""),
        (STALLED, {"queued": 1, "inactive": 61}, "idle"),
    ],
    ids=[
        "lost", "the engine moved", "sent just now", "an hour of prefill", "its metrics show nothing",
        "stalled", "a byte came", "perhaps preempted", "a queue that does not move",
    ],
)  # fmt: skip
def test_judgement(wait: Wait, changes: dict[str, Any], reason: str):
    assert judge(replace(wait, **changes), PATIENCE) == reason


class Watch:
    """A detector on two engines, a clock of its own, and one request on the first."""

    def __init__(self, *, streams: bool) -> None:
        self.clock = Clock()
        engines = [
            Engine(name=name, url=f"http://{name}", base_model="base", gpu_type="h100", slots=2, max_rank=8)
            for name in "ab"
        ]
        self.a, self.b = states = [EngineState(engine, healthy=True, counter_sum=1) for engine in engines]
        known = {state.engine.name: state for state in states}
        self.detector = HangDetector(
            SimpleNamespace(states=lambda: states, state=known.get),  # type: ignore[arg-type]  # a pool
            SimpleNamespace(),  # type: ignore[arg-type]  # nothing is probed
            SimpleNamespace(engine_hung=lambda *_, **__: None),  # type: ignore[arg-type]  # nor measured
            SimpleNamespace(),  # type: ignore[arg-type]  # nor reported
            rules=Rules(timeout=1e9, pause=10.0),
            patience=PATIENCE,
            clock=self.clock,
        )
        self.lease = Lease(self.a, "", self.clock)
        self.a.leases.add(self.lease)
        self.lease.send(streams=streams)

    def look(self, seconds: int, *, moves: bool = False) -> str:
        for _ in range(seconds):
            self.clock.now += 1
            if moves:
                self.a.last_activity = self.clock.now
            self.detector.check()
        return self.lease.abandoned


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_a_lost_request_goes_to_another_engine(streams: bool):
    watch = Watch(streams=streams)
    assert watch.look(600, moves=True) == ""
    assert watch.look(120) == ""
    assert watch.look(2) == "first_byte"


def down(watch: Watch) -> None:
    watch.b.healthy = False


def another_base(watch: Watch) -> None:
    watch.b.engine = replace(watch.b.engine, base_model="other")


def other_labels(watch: Watch) -> None:
    watch.lease.requires = {"region": "eu"}


@pytest.mark.parametrize("nothing_else", [down, another_base, other_labels])
def test_it_is_never_begun_again_on_the_same_engine(nothing_else: Callable[[Watch], None]):
    watch = Watch(streams=True)
    nothing_else(watch)
    assert watch.look(1000) == ""


def test_a_worker_that_did_not_look_saw_no_silence():
    watch = Watch(streams=True)
    watch.look(60)
    watch.clock.now += 1000
    assert watch.look(30) == ""
