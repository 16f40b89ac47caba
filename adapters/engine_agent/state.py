"""An agent's configuration and its current state."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from adapters.engine_agent.supervisor import EngineProcess, Say

log = logging.getLogger(__name__)

REPEAT_SECONDS = 30.0
"""Seconds between two log entries about the same problem."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The operator's options and the values derived from them."""

    name: str
    command: tuple[str, ...]
    environ: dict[str, str]
    """The engine's complete environment."""
    model: str
    """Directory or Hub id."""
    names: tuple[str, ...]
    """Names that the engine serves the model as; the first is the base model's name."""
    slots: int
    cpu_slots: int
    max_rank: int
    chat_template: str | None
    """`--chat-template`: a file, or the template itself."""
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    url: str
    """URL at which the gateway reaches the engine."""
    own_url: str
    """URL at which this agent reaches the engine."""
    agent_host: str
    """Address on which the agent server listens."""
    agent_port: int
    """0 picks a free port."""
    agent_address: str
    """URL at which the gateway reaches the agent server."""
    cache_dir: Path
    cache_bytes: int
    drain_timeout: float
    start_timeout: float
    say: Say | None = None
    """Receives each line of the engine's output; None passes the output on to stdout and stderr."""


@dataclass(slots=True)
class AgentState:
    """Mutable state shared by the agent's tasks."""

    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    """Identifies this agent; no other agent may use the name while this one is alive."""
    engine: EngineProcess | None = None
    starts: int = 0
    epoch: str = ""
    """Epoch of the engine process that is, or last was, healthy."""
    started: int = 0
    """When that process became healthy, Unix microseconds, UTC."""
    registered: str = ""
    """The epoch last registered at the gateway."""
    serving: bool = False
    """The engine has been healthy since its start."""
    stopping: bool = False
    hurry: int = 0
    """Number of stop signals received."""
    ending: bool = False
    """The engine has been told to stop."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    renew: asyncio.Event = field(default_factory=asyncio.Event)
    """The agent has been asked to restart itself without touching its engine."""
    began: float = 0.0
    healthy_since: float | None = None
    """When the engine's process was started and first healthy; monotonic."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is an epoch to register."""
    _mentioned: tuple[str, float] = ("", 0.0)

    @property
    def up(self) -> bool:
        return self.engine is not None and self.engine.alive

    @property
    def patient(self) -> bool:
        """At most one stop signal has been received."""
        return self.hurry < 2

    def ask_to_stop(self) -> None:
        """On SIGTERM or SIGINT. First: drain. Second: stop the engine now. Third: kill it."""
        self.hurry += 1
        self.asked.set()
        if self.engine and self.hurry > (1 if self.ending else 2):
            self.engine.kill()

    def ask_to_renew(self) -> None:
        """SIGHUP."""
        self.renew.set()

    def begin_epoch(self) -> None:
        self.started = time.time_ns() // 1000
        self.serving = True
        self.epoch = f"{self.started // 1_000_000:x}-{secrets.token_hex(6)}"
        self.news.set()

    def mention(self, trouble: str) -> None:
        """Log a problem once, and again periodically while it lasts."""
        last, when = self._mentioned
        if trouble != last or time.monotonic() - when > REPEAT_SECONDS:
            self._mentioned = trouble, time.monotonic()
            log.warning("%s", trouble)
