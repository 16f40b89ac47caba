"""What an agent is told, and what it knows of its engine at any moment."""

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
"""Between two mentions of the same trouble."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What the operator asked for, and what was found out."""

    name: str
    command: tuple[str, ...]
    environ: dict[str, str]
    """The engine's whole environment."""
    model: str
    """Directory or hub id."""
    names: tuple[str, ...]
    """What the engine serves the model as; the first is the base model's name."""
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
    """Where the gateway reaches the engine."""
    own_url: str
    """Where this agent does."""
    agent_host: str
    """Address that the agent server listens on."""
    agent_port: int
    """0: a free one."""
    agent_address: str
    """Where the gateway reaches the agent server."""
    cache_dir: Path
    cache_bytes: int
    drain_timeout: float
    start_timeout: float
    say: Say | None = None
    """Takes each line that the engine writes; None: they go on to stdout and stderr as they are."""


@dataclass(slots=True)
class AgentState:
    """Mutable, shared by the agent's loops."""

    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    """This agent's process: another one may not use the name while it lives."""
    engine: EngineProcess | None = None
    starts: int = 0
    epoch: str = ""
    """Of the engine's process that is healthy, or was last."""
    started: int = 0
    """When that was, Unix microseconds, UTC."""
    registered: str = ""
    """The epoch that the gateway knows."""
    serving: bool = False
    """The engine has been healthy since it was started."""
    stopping: bool = False
    hurry: int = 0
    """How often the operator has asked for the end."""
    ending: bool = False
    """The engine has been told to end."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    renew: asyncio.Event = field(default_factory=asyncio.Event)
    """The agent has been asked to start itself anew, its engine untouched."""
    began: float = 0.0
    healthy_since: float | None = None
    """When the engine's process was started, and first healthy; monotonic."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """There is an epoch that the gateway does not know."""
    _mentioned: tuple[str, float] = ("", 0.0)

    @property
    def up(self) -> bool:
        return self.engine is not None and self.engine.alive

    @property
    def patient(self) -> bool:
        """The operator has not asked twice."""
        return self.hurry < 2

    def ask_to_stop(self) -> None:
        """SIGTERM or SIGINT: drain. Again: end the engine now. Once more: kill it."""
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
        """In the log once, and again now and then while it lasts."""
        last, when = self._mentioned
        if trouble != last or time.monotonic() - when > REPEAT_SECONDS:
            self._mentioned = trouble, time.monotonic()
            log.warning("%s", trouble)
