"""Decides which requests an engine that works will never answer. Pure.

An engine may lose a request, and still pass health checks and answer probes. The request's age does not show
that: a long prompt takes minutes, or waits in a long queue, and would take as long again if it started over.
What counts is silence:

- Before the answer, the engine has shown no activity at all except answers to probes: no byte of any answer
  and no change in its metrics. Nothing is concluded from metrics that cannot show its work. Such a request
  goes to another engine or keeps waiting: on the same engine, it could only start over.
- In a stream, no byte has come, unless the engine works and requests wait in it: a stream that it has
  preempted is one of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds: FLORIN_FIRST_BYTE_TIMEOUT, FLORIN_ENGINE_IDLE_TIMEOUT."""

    first_byte: float
    idle: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that waits for its engine."""

    begun: bool
    """Its client is receiving the answer."""
    silent: float
    """Seconds since the engine got it, or sent a part of its answer."""
    inactive: float
    """Seconds since the engine showed any activity."""
    visible: bool
    """The engine's metrics show when it works."""
    queued: int
    """Requests that wait in the engine."""


def judge(wait: Wait, patience: Patience) -> Literal["", "first_byte", "idle"]:
    """Why to give up waiting; empty: go on."""
    if wait.begun:
        preempted = wait.queued > 0 and wait.inactive <= patience.idle
        return "idle" if wait.silent > patience.idle and not preempted else ""
    lost = wait.visible and min(wait.silent, wait.inactive) > patience.first_byte
    return "first_byte" if lost else ""
