"""An agent's configuration and its current state."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from adapters.engine_agent.engine_output import OnLine
from adapters.engine_agent.engine_process import EngineProcess
from adapters.model import Task
from adapters.security.engine_access import EngineAccess
from adapters.security.renewal import Identity, Renewable

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 2.0
HEARTBEAT_TTL_MS: Final = 6_000
"""Three heartbeats. How long the name of a dead agent stays taken."""
RESTART_STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL of an engine that is restarted on request."""
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
    seats: int
    """0 if unknown."""
    tasks: tuple[Task, ...]
    chat_template: str | None
    """`--chat-template`: a file, or the template itself."""
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    labels: dict[str, str]
    domain: str
    """Failure domain; empty: the host of `url`."""
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
    serves: str = ""
    """The version that is merged into its weights, which is all that it serves; empty: none is."""
    prompt_scores: str = ""
    """What the operator says of whether it survives scoring prompts: `safe`, `unsafe`; empty: nothing."""
    tenant: str = ""
    """The only tenant that the engine serves; empty: it serves all."""
    trial: int = 0
    """Percent of the requests with which a version that is new there is tried first; 0: it is not."""
    on_line: OnLine | None = None
    """Receives each line of the engine's output; None passes the output on to stdout and stderr."""


@dataclass(frozen=True, slots=True)
class HostSecurity:
    """TLS identities of an agent: for the gateway, for its engine and for its own server."""

    server: ssl.SSLContext | None = None
    """The agent server's certificate; None for plain HTTP."""
    engine: EngineAccess = field(default_factory=EngineAccess)
    identities: tuple[Identity, ...] = ()
    """The agent server's certificate and the one presented to the gateway."""

    @property
    def renewables(self) -> tuple[Renewable, ...]:
        return (*self.identities, *self.engine.renewables)


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
    stop_signals: int = 0
    stop_by: float = math.inf
    """When the drain ends at the latest, monotonic; set by a spot notice."""
    ending: bool = False
    """The engine has been told to stop."""
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    restart_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """The agent has been asked to restart itself without touching its engine."""
    restarting_engine: bool = False
    """The engine is being stopped, to be started again."""
    _stopping_engine: asyncio.Task[None] | None = None
    began: float = 0.0
    healthy_since: float | None = None
    """When the engine's process was started and first healthy; monotonic."""
    epoch_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is an epoch to register."""
    _warned: tuple[str, float] = ("", 0.0)

    @property
    def up(self) -> bool:
        return self.engine is not None and self.engine.alive

    @property
    def patient(self) -> bool:
        """At most one stop signal has been received."""
        return self.stop_signals < 2

    def ask_to_stop(self) -> None:
        """On SIGTERM or SIGINT. First: drain. Second: stop the engine now. Third: kill it."""
        self.stop_signals += 1
        self.stop_requested.set()
        if self.engine and self.stop_signals > (1 if self.ending else 2):
            self.engine.kill()

    def ask_to_stop_within(self, seconds: float) -> None:
        """On a spot notice: drain, and stop the engine within that time."""
        self.stop_by = min(self.stop_by, time.monotonic() + seconds)
        self.stop_signals = max(1, self.stop_signals)
        self.stop_requested.set()

    def ask_to_restart_engine(self) -> bool:
        """Stop the engine, so that the supervisor starts it again at once. Returns False if it is not
        running, or is to stop anyway."""
        if self.engine is None or not self.engine.alive or self.stopping or self.stop_requested.is_set():
            return False
        if not self.restarting_engine:
            self.restarting_engine = True
            self._stopping_engine = asyncio.create_task(self.engine.stop(RESTART_STOP_SECONDS))
        return True

    def ask_to_restart(self) -> None:
        """SIGHUP."""
        self.restart_requested.set()

    def begin_epoch(self) -> None:
        self.started = time.time_ns() // 1000
        self.serving = True
        self.epoch = f"{self.started // 1_000_000:x}-{secrets.token_hex(6)}"
        self.epoch_changed.set()

    def warn(self, trouble: str) -> None:
        """Log a problem once, and again periodically while it lasts."""
        last, when = self._warned
        if trouble != last or time.monotonic() - when > REPEAT_SECONDS:
            self._warned = trouble, time.monotonic()
            log.warning("%s", trouble)
