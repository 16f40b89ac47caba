"""The end of an engine whose gateway hangs: the integration tests drain through one that works."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.engine_agent.drain import HURRY_SECONDS, STOP_SECONDS, drain
from adapters.engine_agent.state import AgentState
from tests.support.waiting import PATIENCE_S, until


class Engine:
    """One that ends when it is told to."""

    def __init__(self) -> None:
        self.alive = True
        self.graces: list[float] = []

    async def stop(self, grace: float) -> None:
        self.graces.append(grace)
        self.alive = False


class Hanging:
    """A gateway, or an engine's metrics, that takes connections and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def stopping(self, *_: object) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    requests = stopping


class Idle:
    async def requests(self) -> int:
        return 0


class Open:
    """One that first loads elsewhere what the engine holds, for so many calls."""

    def __init__(self, calls: int = 0) -> None:
        self.left = calls
        self.seconds: list[float] = []

    async def stopping(self, _name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.seconds.append(body["seconds"])
        self.left -= 1
        return {"moved": self.left < 0}


def serving() -> tuple[AgentState, Engine]:
    engine = Engine()
    state = AgentState(engine=engine, serving=True, registered="e-1", stop_signals=1)  # type: ignore[arg-type]
    return state, engine


async def drained(state: AgentState, gateway: Any, watch: Any, seconds: float) -> None:
    host: Any = SimpleNamespace(name="h1", drain_timeout=seconds)
    async with asyncio.timeout(PATIENCE_S):
        await drain(state, gateway, watch, host)


async def test_a_gateway_that_hangs_does_not_outlast_the_drains_time(caplog):
    state, engine = serving()
    await drained(state, Hanging(), Idle(), 0.1)
    assert engine.graces == [STOP_SECONDS]
    assert "cut off" not in caplog.text  # nothing ran


@pytest.mark.parametrize("hung", ["gateway", "engine"])
async def test_a_second_signal_does_not_wait_for_what_hangs(hung):
    state, engine = serving()
    hanging = Hanging()
    gateway, watch = (hanging, Idle()) if hung == "gateway" else (Open(), hanging)
    draining = asyncio.create_task(drained(state, gateway, watch, 600.0))
    await hanging.asked.wait()
    assert not engine.graces
    state.stop_signals += 1  # as ask_to_stop does
    await draining
    assert engine.graces == [HURRY_SECONDS]


async def test_what_goes_wrong_while_it_drains_is_not_hidden():
    class Broken:
        async def stopping(self, *_: object) -> None:
            raise ZeroDivisionError

    state, _ = serving()
    with pytest.raises(ZeroDivisionError):
        await drained(state, Broken(), Idle(), 600.0)


async def test_an_idle_engine_is_not_stopped_while_the_gateway_still_routes_to_it(monkeypatch):
    monkeypatch.setattr("adapters.engine_agent.drain.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("adapters.engine_agent.drain._LOOK_SECONDS", 0.01)
    state, engine = serving()
    gateway = Open(calls=3)
    await drained(state, gateway, Idle(), 600.0)
    assert len(gateway.seconds) == 4
    assert all(0 < seconds <= 600 for seconds in gateway.seconds)
    assert engine.graces == [STOP_SECONDS]


async def test_a_spot_notice_shortens_a_drain():
    state, engine = serving()
    gateway = Open(calls=1_000_000)
    draining = asyncio.create_task(drained(state, gateway, Idle(), 600.0))
    await until(lambda: gateway.seconds)
    state.ask_to_stop_within(0.1)
    await draining
    assert engine.graces == [STOP_SECONDS]


async def test_a_later_notice_does_not_lengthen_it():
    state, _ = serving()
    state.ask_to_stop_within(10)
    by = state.stop_by
    state.ask_to_stop_within(1000)
    assert state.stop_by == by
    assert state.stop_requested.is_set()
