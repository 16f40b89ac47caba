"""An agent that starts itself anew, with new code, while its engine goes on serving.

The process stays the same one (`execve`), and so do its children and the files that it leaves open: the
guard's pipes, the engine's output, the agent server's socket, the cache's lock. What the next agent must know
beside them is `AgentHandover`. Still nothing is left behind, whenever the process ends: the guard reads the
end of its pipe.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class HandoverError(Exception):
    """The next agent could not begin; the message says why. The present one goes on."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    guard: int
    """Pid."""
    pid: int
    """Of the leader."""
    words: int
    status: int
    output: tuple[int, int]
    """Descriptors: to the guard, from it, the engine's stdout and stderr."""
    tail: tuple[str, ...]
    healthy_since: float | None
    """Monotonic."""
    began: float


@dataclass(frozen=True, slots=True)
class AgentHandover:
    """What one agent tells the next."""

    instance: str
    starts: int
    epoch: str
    started: int
    registered: str
    token: str
    """Of the agent server."""
    lock: int
    agent_server: tuple[int, ...]
    """Descriptors."""
    command: tuple[str, ...]
    """What the engine was started with, or will be."""
    engine: RunningEngine | None = None
    """None: it is about to be started."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> AgentHandover:
        told = json.loads(text)
        engine = told.pop("engine")
        if engine is not None:
            engine = RunningEngine(**engine | {n: tuple(engine[n]) for n in ("output", "tail")})
        return cls(**told | {n: tuple(told[n]) for n in ("command", "agent_server")} | {"engine": engine})

    @property
    def descriptors(self) -> tuple[int, ...]:
        engine = self.engine
        return (
            self.lock,
            *self.agent_server,
            *((engine.words, engine.status, *engine.output) if engine else ()),
        )


@dataclass(frozen=True, slots=True)
class Successor:
    check: Callable[[], Awaitable[None]]
    """Raises HandoverError when it could not begin."""
    start: Callable[[str], None]
    """Becomes it, and tells it that; does not return."""


def hand_over(running: AgentHandover, successor: Successor) -> None:
    """Signals wait until the next agent listens to them. Raises HandoverError; else it does not return."""
    for descriptor in running.descriptors:
        os.set_inheritable(descriptor, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        successor.start(running.text())
    except OSError as error:
        taken_over(running)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise HandoverError(str(error)) from error


def taken_over(running: AgentHandover) -> None:
    """What the engine's next processes must not inherit again."""
    for descriptor in running.descriptors:
        os.set_inheritable(descriptor, False)
