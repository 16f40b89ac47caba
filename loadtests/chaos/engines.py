"""Engines that can be killed, stopped and hung: mock engines or real vLLM. All methods block."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Protocol

import httpx2
import psutil
from rich.console import Console

from deploy.demo.engine_env import ensure_engine_env
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel, ensure_demo_model
from loadtests.chaos.proxy import free_port
from loadtests.mock_engine.process import MockProcess
from loadtests.overhead import adapter_files

SLOTS = 3
PACE = {"first_byte_delay": 0.01, "event_delay": 0.012}
"""Durations of a mock engine's answers in seconds, so that some are always in flight."""
LONGEST = 24
"""Tokens of a mock engine's natural answer."""


class Engine(Protocol):
    """One engine with a fixed port."""

    @property
    def port(self) -> int: ...

    def start(self) -> None:
        """Start it and wait until it responds."""

    def kill(self) -> None:
        """SIGKILL all of its processes."""

    def signal(self, number: signal.Signals) -> None:
        """Signal all of its processes."""

    def hang(self, hung: bool) -> None:  # noqa: FBT001 - a state, said by its name
        """Hang: stop generating while `/health` still responds; or recover."""


class Engines(Protocol):
    """The fleet and its adapters."""

    all: list[Engine]
    base: str
    tenants: tuple[str, ...]
    """Tenants, each with an adapter whose answers are distinguishable."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def registration(self) -> dict[str, Any]:
        """Registration fields of each engine except name and URL."""

    def source(self, tenant: str, number: int = 1) -> Path:
        """The files of a tenant's adapter; `number` selects a version if there are several."""

    def reached(self) -> set[str]:
        """The attempts that engines have received since they were started."""


class _Mock:
    def __init__(self) -> None:
        self.port = free_port()
        self._process = MockProcess(
            port=self.port, base=adapter_files.BASE, max_loras=SLOTS, answer_tokens=LONGEST, log=200_000
        )

    def start(self) -> None:
        self._process.start()
        self._process.faults(**PACE)

    def kill(self) -> None:
        self._process.kill()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def hang(self, hung: bool) -> None:  # noqa: FBT001 - see Engine
        self._process.act("stop-core" if hung else "continue-core")

    def reached(self) -> set[str]:
        names = (call["headers"].get("x-request-id", "") for call in self._process.log()["calls"])
        return {name for name in names if name}  # Florin's own probes have no id


class MockEngines:
    base = adapter_files.BASE
    tenants: tuple[str, ...] = ("acme", "bolt", "corgi", "dora", "elan", "faro")

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._mocks = [_Mock() for _ in range(count)]
        self.all: list[Engine] = list(self._mocks)

    def start(self) -> None:
        for engine in self.all:
            engine.start()

    def close(self) -> None:
        for engine in self.all:
            engine.kill()

    def registration(self) -> dict[str, Any]:
        config = str(adapter_files.write_base_config(self._directory / "base"))
        return {"gpu_type": "H100", "slots": SLOTS, "cpu_slots": 8, "max_rank": 8, "base_config": config}

    def source(self, tenant: str, number: int = 1) -> Path:
        seed = self.tenants.index(tenant) + 1 + 100 * (number - 1)
        return adapter_files.write_adapter(self._directory / f"{tenant}-{number}", seed)

    def reached(self) -> set[str]:
        return {name for mock in self._mocks for name in mock.reached()}


class _Real:
    def __init__(self, fleet: Fleet, index: int) -> None:
        self._fleet, self._engine = fleet, fleet.engines[index]

    @property
    def port(self) -> int:
        return self._engine.port

    def start(self) -> None:
        self._fleet.restart(self._engine.index)

    def kill(self) -> None:
        self._engine.kill()

    def signal(self, number: signal.Signals) -> None:
        self._engine.signal(number)

    def hang(self, hung: bool) -> None:  # noqa: FBT001 - see Engine
        """Stop the engine core; the API server keeps running."""
        for child in psutil.Process(self._engine.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGSTOP if hung else signal.SIGCONT)


class RealEngines:
    """vLLM, with the demo's model and adapters."""

    def __init__(self, directory: Path, count: int, console: Console) -> None:
        env = ensure_engine_env(console)
        self._model: DemoModel = ensure_demo_model(env, console)
        options = EngineOptions(slots=SLOTS)
        self._fleet = Fleet(env, self._model, logs=directory, count=count, options=options)
        self.base = self._model.served_name
        self.tenants = tuple(sorted(self._model.adapters))
        self.all: list[Engine] = [_Real(self._fleet, index) for index in range(count)]

    def start(self) -> None:
        self._fleet.start()

    def close(self) -> None:
        for engine in self._fleet.engines:
            engine.signal(signal.SIGCONT)
        self._fleet.stop()

    def registration(self) -> dict[str, Any]:
        config = str(self._model.base / "config.json")
        rank = self._model.rank
        return {"gpu_type": "H100", "slots": SLOTS, "cpu_slots": 8, "max_rank": rank, "base_config": config}

    def source(self, tenant: str, number: int = 1) -> Path:
        del number  # there is one
        return Path(self._model.adapters[tenant].path)

    def reached(self) -> set[str]:
        return set()  # their logs have no stable format


def loaded(port: int) -> set[str]:
    """Florin's adapters that an engine lists. Raises httpx2.HTTPError."""
    answer = httpx2.get(f"http://127.0.0.1:{port}/v1/models", timeout=10, trust_env=False).raise_for_status()
    return {model["id"] for model in answer.json()["data"] if model["id"].startswith("fl-")}
