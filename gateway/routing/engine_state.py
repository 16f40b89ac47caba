"""The pool's mutable data: what one worker knows of an engine, and its own requests there."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from adapters.model import Engine
from gateway.admission.overload import CompletionRate, EngineLoad
from gateway.routing.outlier_ejection import Standing
from gateway.routing.request_identity import RequestIdentity

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Use:
    """This worker's use of one version on one engine."""

    in_flight: int = 0
    last_used: float = 0.0
    reported: float = -1e9
    """When the store was last told, on the same clock."""
    dirty: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """One request in flight on one engine, which keeps its adapter's slot there.

    The request's task calls `send`, `received`, `begin` and, on every path, `end`, which takes effect once.
    Whoever finds the engine dead or hung calls `abandon` to cancel the task, which then finds out why with
    `acknowledge_abandonment`.
    """

    state: EngineState
    version: str
    clock: Callable[[], float]
    begun: bool = False
    """The client is receiving the answer, so the request cannot start over elsewhere."""
    abandoned: Literal["", "down", "hung", "first_byte", "idle"] = ""
    """Why the attempt was abandoned: the engine is down or hung, or the answer did not start in time or
    stopped. The request is retried, its stream is resumed, or its stream ends."""
    woken: bool = False
    """Its task was cancelled for that reason, and has not noticed yet."""
    writing: bool = False
    """Its task is waiting for the client."""
    task: asyncio.Task[object] | None = None
    ended: bool = False
    identity: RequestIdentity | None = None
    deaths: int = 0
    """The engine's `deaths` when the lease was acquired."""
    outages: int = 0
    """The engine's `outages` at that time."""
    resumable: bool = False
    """If the engine fails, another can resume the stream."""
    on_trial: Callable[[], None] | None = None
    """Set during the trial of a suspect; called when its answer starts or the lease ends."""
    sent: float = 0.0
    """When the request was sent to the engine."""
    waits_from: float | None = None
    """When it started to wait for the engine; None: it waits for something else, such as a slow client."""
    last_byte_at: float = -math.inf
    """When the last byte of the answer arrived."""
    streams: bool = False

    @property
    def movable(self) -> bool:
        """Whether another engine can take over the request."""
        return not self.begun or self.resumable

    def send(self, *, streams: bool) -> None:
        """The request is being sent; it waits for the engine."""
        self.sent = self.waits_from = self.clock()
        self.streams = streams

    def received(self) -> None:
        """Part of the answer arrived, which shows that the engine's core works."""
        self.last_byte_at = self.waits_from = self.clock()

    def begin(self) -> None:
        """The answer is about to reach the client."""
        self.begun = True
        if self.identity is not None:
            self.identity.begin()
        self._end_trial()

    def record_loss(self) -> None:
        """Remember that the attempt failed or was given up: if the engine is found dead soon, the request was
        on it."""
        if (
            self.identity is not None and self.state.outages == self.outages
        ):  # otherwise it was counted already
            self.identity.fingerprint  # noqa: B018 - computes it, which frees the payload
            self.state.recent_failures.append((self.clock(), self.identity, self.begun))

    def _end_trial(self) -> None:
        if self.on_trial is not None:
            settle, self.on_trial = self.on_trial, None
            self.state.trials.discard(self)
            settle()

    def abandon(self, why: Literal["down", "hung", "first_byte", "idle"]) -> None:
        """End the attempt from outside, because the engine is dead, hung or too slow: cancel the request's
        task, which retries, resumes, or ends its stream."""
        if not self.abandoned and self.task is not None:
            self.abandoned = why
            if not self.writing:
                self.woken = True
                self.task.cancel()

    def acknowledge_abandonment(self) -> bool:
        """Whether a CancelledError is due to `abandon` alone. Acknowledges it, so call it once per error."""
        if not self.woken:
            return False
        self.woken = False
        task = asyncio.current_task()
        assert task is not None
        return task.uncancel() == 0

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Protect a write to the client from `abandon`, which only sets its mark meanwhile: whether a
        cancelled write was delivered is unknown. Nor does the time count as waiting for the engine: a slow
        client is not its fault."""
        self.writing, waits = True, self.waits_from
        self.waits_from = None
        try:
            yield
        finally:
            self.writing = False
            if waits is not None:
                self.waits_from = self.clock()

    def mark_suspect(self, reason: str) -> None:
        """The engine refused or dropped a connection: do not use it until it passes a probe."""
        if not self.state.suspect:
            log.warning("Engine %s suspect: %s", self.state.engine.name, reason)
        self.state.suspect = True
        self.state.reason = reason
        self.state.wake.set()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._end_trial()
        state = self.state
        state.in_flight -= 1
        state.leases.discard(self)
        state.last_activity = max(state.last_activity, self.last_byte_at)
        use = state.uses.get(self.version)
        if self.begun:
            state.completion_rate.record(self.clock())
        if use is not None:
            use.in_flight -= 1
            use.last_used = self.clock()
            use.dirty = True


@dataclass(slots=True, eq=False)
class EngineState:
    """Mutable: what this worker knows about one engine in addition to its registration.

    The prober writes health and load, leases write activity and failures, the hang detector writes
    `standing`, `ejected` and `doubtful`.
    """

    engine: Engine
    healthy: bool | None = None
    """None: not probed yet."""
    suspect: bool = False
    """A connection to it failed; the next probe decides."""
    in_flight: int = 0
    in_flight_of_others: int = 0
    """Other workers' requests, according to its metrics at the last probe."""
    running: int = 0
    waiting: int = 0
    concurrency: int = 0
    """Requests that it ran while its queue was not empty at two probes in a row; 0: its queue is empty."""
    completion_rate: CompletionRate = field(default_factory=CompletionRate)
    """Of this worker's requests."""
    process_started: int = 0
    """When its process started, according to its metrics; Unix microseconds; 0: unknown."""
    uses: dict[str, Use] = field(default_factory=dict)
    leases: set[Lease] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to request a probe."""
    reason: str = ""
    """Why it is unhealthy."""
    consecutive_failures: int = 0
    """Consecutive probes that timed out."""
    down_since: float | None = None
    new: bool = False
    """It was registered while this worker was running, and has not been up yet."""
    slow_from: float | None = None
    """Start of its slow start; None: it is over."""
    failure_streak: int = 0
    """Consecutive failed attempts."""
    outages: int = 0
    """Number of times that it went down or hung, for whatever reason."""
    outages_charged: int = 0
    """The last of these that was charged to the retry budget."""
    deaths: int = 0
    """Number of times that it went down without having been stopped."""
    recent_failures: deque[tuple[float, RequestIdentity, bool]] = field(
        default_factory=lambda: deque(maxlen=1000)
    )
    """Failed attempts: when, which request, and whether its answer had started."""
    trials: set[Lease] = field(default_factory=set)
    probe_done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, after each probe."""
    probe_requested: float = -math.inf
    """When a failed attempt last requested a probe."""
    seen_up: float = -math.inf
    first_missed: float = 0.0
    """When the first of `consecutive_failures` occurred."""
    standing: Standing = field(default_factory=Standing)
    """Whether it hangs although it passes health checks."""
    ejected: bool = False
    """It hangs and is ejected for a period. Otherwise it returns at the first sign of life."""
    doubtful: bool = False
    """It has been silent for a while, or hangs: each probe reads its counters, too."""
    last_activity: float = -math.inf
    """When it last showed activity; for running requests, see `Lease.last_byte_at`."""
    counter_sum: int | None = None
    """Sum of its counters at the last scrape. It changes while the engine works."""
    control_calls: set[asyncio.Timeout] = field(default_factory=set)
    """Timeouts of control calls in progress, such as loads. They expire if the engine hangs."""

    def load(self, now: float) -> EngineLoad:
        return EngineLoad(
            self.in_flight,
            self.in_flight + self.in_flight_of_others,
            self.concurrency,
            self.completion_rate.at(now),
        )

    def announce_probe(self) -> None:
        self.probe_done.set()
        self.probe_done = asyncio.Event()

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it. Engines not probed yet count as healthy, so that a new worker
        can serve at once."""
        healthy = self.healthy is not False and not self.suspect and not self.standing.hangs
        return healthy and self.engine.takes_requests

    def last_sign(self) -> float:
        """When it last showed activity."""
        return max(self.last_activity, max((lease.last_byte_at for lease in self.leases), default=-math.inf))

    @property
    def has_waiters(self) -> bool:
        """Whether anything waits for it."""
        return bool(self.control_calls) or any(lease.waits_from is not None for lease in self.leases)

    def __repr__(self) -> str:
        return f"<{self.engine.name} healthy={self.healthy} in_flight={self.in_flight}>"
