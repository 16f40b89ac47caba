"""What one worker knows of one engine, and of its own requests there: the pool's mutable data."""

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
from gateway.admission.overload import EngineLoad, Pace
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
    """One request in flight on one engine. Ends exactly once: `end` is idempotent."""

    state: EngineState
    version: str
    clock: Callable[[], float]
    begun: bool = False
    """The answer has begun to reach the client: the request can no longer go elsewhere."""
    abandoned: Literal["", "down", "hung", "first_byte", "idle"] = ""
    """Why the engine was given up on: it was found dead, or hangs; the answer did not begin in time, or
    stopped coming. The request goes elsewhere, goes on elsewhere, or ends its stream."""
    woken: bool = False
    """Its task has been cancelled for that, and has not noticed yet."""
    writing: bool = False
    """Its task waits for the client."""
    task: asyncio.Task[object] | None = None
    ended: bool = False
    identity: RequestIdentity | None = None
    deaths: int = 0
    """The engine's, when this began."""
    ends: int = 0
    resumable: bool = False
    """Should the engine fail, another may go on with what has begun."""
    on_trial: Callable[[], None] | None = None
    """Called when it has begun to answer or ended, if it is kept apart from others until then."""
    sent: float = 0.0
    """When the engine was sent it."""
    waits_from: float | None = None
    """Since when it has waited for the engine; None: it does not, but for the usage log, or a slow client."""
    heard: float = -math.inf
    """When the last byte of its answer came."""
    streams: bool = False

    @property
    def movable(self) -> bool:
        """Whether the request can still be done elsewhere."""
        return not self.begun or self.resumable

    def send(self, *, streams: bool) -> None:
        """From now on it waits for the engine."""
        self.sent = self.waits_from = self.clock()
        self.streams = streams

    def hear(self) -> None:
        """The engine has said something of it: only its core can."""
        self.heard = self.waits_from = self.clock()

    def begin(self) -> None:
        """The answer begins to reach the client."""
        self.begun = True
        if self.identity is not None:
            self.identity.begin()
        self._acquit()

    def lost(self) -> None:
        """The attempt failed, or nobody waits for it any more: should the engine be found dead now, it was
        there."""
        if self.identity is not None and self.state.ends == self.ends:  # else it has been counted
            self.identity.fingerprint  # noqa: B018 - from now on it holds no payload
            self.state.losses.append((self.clock(), self.identity, self.begun))

    def _acquit(self) -> None:
        if self.on_trial is not None:
            settle, self.on_trial = self.on_trial, None
            self.state.trials.discard(self)
            settle()

    def abandon(self, why: Literal["down", "hung", "first_byte", "idle"]) -> None:
        """Wake the request's task, which finds `abandoned` and goes elsewhere, goes on elsewhere, or ends its
        stream. This is how whoever finds that an engine is dead, or hangs, ends a request there."""
        if not self.abandoned and self.task is not None:
            self.abandoned = why
            if not self.writing:
                self.woken = True
                self.task.cancel()

    def reclaim(self) -> bool:
        """Of a CancelledError: was it `abandon`, and nobody else? Counts it as noticed."""
        if not self.woken:
            return False
        self.woken = False
        task = asyncio.current_task()
        assert task is not None
        return task.uncancel() == 0

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """While the client is written to, `abandon` only leaves a mark: a write that is cancelled may have
        been delivered, or not. Nor does the answer wait for the engine then: a client that reads slowly is no
        fault of the engine's."""
        self.writing, waits = True, self.waits_from
        self.waits_from = None
        try:
            yield
        finally:
            self.writing = False
            if waits is not None:
                self.waits_from = self.clock()

    def doubt(self, reason: str) -> None:
        """The engine refused or broke a connection: nobody uses it until a probe has passed."""
        if not self.state.suspect:
            log.warning("engine %s is suspect: %s", self.state.engine.name, reason)
        self.state.suspect = True
        self.state.reason = reason
        self.state.wake.set()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._acquit()
        state = self.state
        state.in_flight -= 1
        state.leases.discard(self)
        state.sign = max(state.sign, self.heard)
        use = state.uses.get(self.version)
        if self.begun:
            state.pace.note(self.clock())
        if use is not None:
            use.in_flight -= 1
            use.last_used = self.clock()
            use.dirty = True


@dataclass(slots=True, eq=False)
class EngineState:
    """Mutable: everything this worker knows about one engine beyond its registration."""

    engine: Engine
    healthy: bool | None = None
    """None: not probed yet."""
    suspect: bool = False
    """A request failed on it; a probe will tell."""
    in_flight: int = 0
    in_flight_of_others: int = 0
    """Requests of other workers, by the engine's own metrics at the last probe."""
    running: int = 0
    waiting: int = 0
    runs: int = 0
    """How many it ran when it said, twice in a row, that others wait; 0: none do."""
    pace: Pace = field(default_factory=Pace)
    """Of the answers to this worker's requests."""
    began: int = 0
    """When its process began, as it said last; Unix microseconds; 0: it has not said."""
    uses: dict[str, Use] = field(default_factory=dict)
    leases: set[Lease] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to probe at once."""
    reason: str = ""
    """Why it is unhealthy."""
    consecutive_failures: int = 0
    """Probes in a row that got no answer."""
    down_since: float | None = None
    new: bool = False
    """It came while this worker was running, and has not been seen up."""
    slow_from: float | None = None
    """When its slow start began; None: long ago."""
    streak: int = 0
    """Attempts in a row that failed on it."""
    ends: int = 0
    """How often it was found down, for whatever reason."""
    ends_charged: int = 0
    """The last of those that the retry budget knows of."""
    deaths: int = 0
    """How often it was found down, though nobody had ended it."""
    losses: deque[tuple[float, RequestIdentity, bool]] = field(default_factory=lambda: deque(maxlen=1000))
    """When attempts failed on it, whose, and whether they had begun to answer."""
    trials: set[Lease] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when a probe has told."""
    asked: float = -math.inf
    """When a failed attempt last asked for a probe."""
    seen_up: float = -math.inf
    missed_from: float = 0.0
    """When the first of `consecutive_failures` was."""
    standing: Standing = field(default_factory=Standing)
    """Whether it hangs, though it says that it is well."""
    ejected: bool = False
    """It hangs, and is kept away for a pause; otherwise it would be back at the first sign of life."""
    doubtful: bool = False
    """It has been silent for a while, or hangs: each probe looks at its counters too."""
    sign: float = -math.inf
    """When it last showed that it works; for requests that run, see `Lease.heard`."""
    mark: int | None = None
    """What its counters added up to at the last look: while it works, this changes."""
    errands: set[asyncio.Timeout] = field(default_factory=set)
    """Loads and the like that wait for it; when it hangs, they are told so."""

    def load(self, now: float) -> EngineLoad:
        return EngineLoad(
            self.in_flight, self.in_flight + self.in_flight_of_others, self.runs, self.pace.at(now)
        )

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    @property
    def usable(self) -> bool:
        """Unprobed engines are tried: a new worker should not refuse what it has not looked at."""
        healthy = self.healthy is not False and not self.suspect and not self.standing.hangs
        return healthy and self.engine.takes_requests

    def last_sign(self) -> float:
        """When it last showed that it works."""
        return max(self.sign, max((lease.heard for lease in self.leases), default=-math.inf))

    @property
    def awaited(self) -> bool:
        """Whether something waits for it."""
        return bool(self.errands) or any(lease.waits_from is not None for lease in self.leases)

    def __repr__(self) -> str:
        return f"<{self.engine.name} healthy={self.healthy} in_flight={self.in_flight}>"
