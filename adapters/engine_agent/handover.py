"""Restarts an agent with new code while its engine keeps serving.

The process replaces itself with `execve`, which keeps its pid, its children and its open files: the
subreaper's pipes, the engine's output, the agent server's socket, the cache's lock. `AgentHandover` holds
everything else that the successor needs. If the process dies at any point, the subreaper sees the end of its
pipe and kills the engine.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class HandoverError(Exception):
    """The successor cannot start; the message says why. The current agent continues."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    subreaper: int
    """Pid."""
    pid: int
    """Pid of the leader."""
    stdin: int
    status: int
    output: tuple[int, int]
    """Descriptors: the subreaper's stdin and status, the engine's stdout and stderr."""
    tail: tuple[str, ...]
    healthy_since: float | None
    """Monotonic."""
    began: float


@dataclass(frozen=True, slots=True)
class AgentHandover:
    """State passed from one agent to its successor."""

    instance: str
    starts: int
    epoch: str
    started: int
    registered: str
    token: str
    """The agent server's."""
    lock: int
    """Descriptor of the cache's lock."""
    agent_server: tuple[int, ...]
    """Descriptors of the agent server's sockets."""
    command: tuple[str, ...]
    """The command that the engine was or will be started with."""
    engine: RunningEngine | None = None
    """None if it is about to be started."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> AgentHandover:
        fields = json.loads(text)
        engine = fields.pop("engine")
        if engine is not None:
            engine = RunningEngine(**engine | {n: tuple(engine[n]) for n in ("output", "tail")})
        return cls(**fields | {n: tuple(fields[n]) for n in ("command", "agent_server")} | {"engine": engine})

    @property
    def descriptors(self) -> tuple[int, ...]:
        engine = self.engine
        return (
            self.lock,
            *self.agent_server,
            *((engine.stdin, engine.status, *engine.output) if engine else ()),
        )


@dataclass(frozen=True, slots=True)
class Successor:
    check: Callable[[], Awaitable[None]]
    """Raises HandoverError if the successor cannot start."""
    start: Callable[[str], None]
    """Replace this process by the successor with the given handover; does not return."""


def hand_over(running: AgentHandover, successor: Successor) -> None:
    """Hand over to the successor. Signals are blocked until it handles them. Raises HandoverError; otherwise
    does not return."""
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
    """Make the inherited descriptors close-on-exec again, so that new engine processes do not inherit
    them."""
    for descriptor in running.descriptors:
        os.set_inheritable(descriptor, False)
