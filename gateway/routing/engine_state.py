"""What one worker knows about an engine, and its own requests there."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from adapters.drivers import driver_of
from adapters.model import Engine
from adapters.placement.mirror import Mirror
from adapters.placement.requirements import SCORES_PROMPTS, for_task
from adapters.placement.scheduling.costs import EngineCosts
from adapters.placement.scheduling.learned_costs import LearnedCosts
from adapters.placement.scheduling.prefix_cache import Seen
from adapters.placement.scheduling.view import EngineView
from adapters.store.protocol.loads import Load, bit_of
from gateway.admission.fair_queue.credits import EngineCredit
from gateway.admission.fair_queue.fleet_queue import Charge
from gateway.metering.output_estimate import AnswerSpeed
from gateway.routing.outlier_ejection import EjectionState
from gateway.routing.request_identity import RequestIdentity
from gateway.runtime.cancel_scope import CancelScope

log = logging.getLogger(__name__)


class AnsweredAttempt(Protocol):
    """The part of an attempt's usage record that tells what an answer cost."""

    first: int
    """Monotonic nanoseconds, like `start` and `ended`; 0: not a stream."""
    ended: int

    @property
    def outcome(self) -> str | None: ...

    @property
    def start(self) -> int: ...

    @property
    def tokens(self) -> tuple[int, int | None, int]: ...


def not_probed() -> None:
    """No prober watches the engine."""


class EngineLostError(Exception):
    """The attempt was abandoned: see `Lease.abandoned`."""


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
    It waits for the engine inside `scope`. Whoever finds the engine dead or hung calls `abandon`.
    """

    state: EngineState
    version: str
    clock: Callable[[], float]
    begun: bool = False
    """The client is receiving the answer, so the request cannot start over elsewhere."""
    abandoned: Literal["", "down", "hung", "first_byte", "idle", "deadline"] = ""
    """Why the attempt was abandoned: the engine is down or hung, the answer did not start in time or stopped,
    or the request's own deadline passed. The request is retried, or its stream is resumed or ends."""
    scope: CancelScope = field(default_factory=CancelScope)
    """Left with EngineLostError if the attempt is abandoned."""
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
    trouble: str = ""
    """Why the engine failed the request: the reason of `RetryElsewhere`."""
    sent: float = 0.0
    """When the request was sent to the engine."""
    waits_from: float | None = None
    """When it started to wait for the engine; None: it waits for something else, such as a slow client."""
    last_byte_at: float = -math.inf
    """When the last byte of the answer arrived."""
    streams: bool = False
    prompt_tokens: int = 0
    """Estimated, as far as the engine must compute them."""
    seen: Seen | None = None
    """What the engine had seen of the prompt before."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Labels that its engine must have."""
    answered: bool = False
    """Its first token arrived, or it ended without one."""
    answer_by: float = math.inf
    """When a stream's first token must have arrived, on `clock`."""
    timer: asyncio.TimerHandle | None = None
    """Abandons the attempt then."""
    record: AnsweredAttempt | None = None
    """What the attempt has used so far; None: it was not sent."""
    charge: Charge | None = None
    """What its tenant has been charged for it."""
    on_end: Callable[[Lease], None] | None = None
    met: tuple[int, int] = (0, 0)
    """Requests in flight and prompt tokens pending on the engine when it was sent, its own included."""

    @property
    def movable(self) -> bool:
        """Whether another engine can take over the request."""
        return not self.begun or self.resumable

    def send(self, *, streams: bool, record: AnsweredAttempt | None = None) -> None:
        """The request is being sent; it waits for the engine."""
        self.record = record
        self.sent = self.waits_from = self.state.used_at = self.clock()
        self.streams = streams
        view = self.state.view
        self.met = view.load, view.pending + view.others_pending
        if streams and self.answer_by < math.inf:
            left = max(0.0, self.answer_by - self.sent)
            self.timer = asyncio.get_running_loop().call_later(left, self._expire)

    def learn(self, record: AnsweredAttempt, *, answers: int) -> None:
        """The engine answered: learn from it what its prefix cache keeps and what answers cost there. For the
        latter, only a stream of one answer tells."""
        if self.seen is not None:
            prompt, cached, _ = record.tokens
            if cached is not None and prompt:
                self.state.view.prefixes.answered(self.seen, prompt=prompt, cached=cached)
        if not record.first or answers > 1 or record.outcome != "ok":
            return
        tokens = record.tokens[2]
        self.state.learned.answered(
            in_flight=self.met[0],
            pending=self.met[1],
            first_token_ms=(record.first - record.start) / 1e6,
            token_ms=(record.ended - record.first) / 1e6 / max(1, tokens - 1),
            tokens=tokens,
        )

    def received(self) -> None:
        """Part of the answer arrived, which shows that the engine's core works."""
        self.last_byte_at = self.waits_from = self.clock()

    def begin(self) -> None:
        """The answer is about to reach the client."""
        self.begun = True
        if self.streams:  # a whole answer ends at once
            self._leave_queue()
        if self.identity is not None:
            self.identity.begin()
        if self.on_trial is not None:
            self._end_trial()

    def _expire(self) -> None:
        if not self.begun:
            self.abandon("deadline")

    def _leave_queue(self) -> None:
        if not self.answered:
            self.answered = True
            if self.timer is not None:
                self.timer.cancel()
            self.state.view.answering(self.prompt_tokens)

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

    def abandon(self, reason: Literal["down", "hung", "first_byte", "idle", "deadline"]) -> None:
        """End the attempt from outside, because the engine is dead, hung or too slow: its task retries,
        resumes, or ends its stream as soon as it waits for the engine, but completes what it is sending to
        the client."""
        if not self.abandoned:
            self.abandoned = reason
            self.scope.cancel(EngineLostError(reason))

    def writing(self) -> _Writing:
        """A write to the client does not count as waiting for the engine: a slow client is not its fault."""
        return _Writing(self)

    def mark_suspect(self, reason: str) -> None:
        """The engine refused or dropped a connection: do not use it until it passes a probe."""
        if not self.state.suspect:
            log.warning("Engine %s suspect: %s", self.state.engine.name, reason)
        self.state.suspect = True
        self.state.reason = reason
        self.state.probe_soon()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self.on_trial is not None:
            self._end_trial()
        if self.timer is not None:
            self.timer.cancel()
        state = self.state
        state.view.ended(self.version, 0 if self.answered else self.prompt_tokens)
        self.answered = True
        state.leases.discard(self)
        state.last_activity = max(state.last_activity, self.last_byte_at)
        use = state.uses.get(self.version)
        if use is not None:
            use.in_flight -= 1
            use.last_used = self.clock()
            use.dirty = True
        if self.on_end is not None:
            self.on_end(self)


class _Writing:
    """A context manager as a class: a generator would cost three times as much."""

    __slots__ = ("_lease", "_waits")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> None:
        self._waits, self._lease.waits_from = self._lease.waits_from, None

    def __exit__(self, *_: object) -> None:
        if self._waits is not None:
            self._lease.waits_from = self._lease.clock()


@dataclass(slots=True, eq=False)
class EngineState:
    """Mutable: what this worker knows about one engine in addition to its registration.

    `EngineHealth` writes its health, the scraper its load, leases write activity and failures, and the hang
    detector writes `ejection`, `ejected`, `doubtful` and `inactive`.
    """

    engine: Engine
    healthy: bool | None = None
    """None: not probed yet."""
    suspect: bool = False
    """A connection to it failed; the next probe decides."""
    running: int = 0
    waiting: int = 0
    kv_usage: float | None = None
    """Part of its KV cache that is in use; None: not known."""
    credit: EngineCredit = field(default_factory=EngineCredit)
    """How many requests may be on it at a time, over all workers."""
    limited: bool = False
    """Whether its requests are limited by this credit."""
    scrape_wanted: bool = False
    """Its next probe must read its metrics."""
    process_started: int = 0
    """When its process started, according to its metrics; Unix microseconds; 0: unknown."""
    uses: dict[str, Use] = field(default_factory=dict)
    connections: int = 0
    """Number of times that probes had to connect: its process may be another then."""
    leases: set[Lease] = field(default_factory=set)
    probe_soon: Callable[[], None] = not_probed
    """Requests a probe. Set by the prober."""
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
    probe_done: asyncio.Event | None = None
    """Set after the next probe; None: nobody waits for it."""
    probe_requested: float = -math.inf
    """When a failed attempt last requested a probe."""
    seen_up: float = -math.inf
    first_missed: float = 0.0
    """When the first of `consecutive_failures` occurred."""
    ejection: EjectionState = field(default_factory=EjectionState)
    """Whether it hangs although it passes health checks."""
    ejected: bool = False
    """It hangs and is ejected for a period. Otherwise it returns at the first sign of life."""
    doubtful: bool = False
    """It has been silent for a while, or hangs: each probe reads its counters, too."""
    used_at: float = -math.inf
    """When this worker last sent it a request."""
    last_activity: float = -math.inf
    """When it last showed activity; for running requests, see `Lease.last_byte_at`."""
    inactive: float = 0.0
    """Seconds since it last showed activity, without those in which this worker did not look."""
    counter_sum: int | None = None
    """Sum of its counters at the last scrape. It changes while the engine works."""
    control_calls: set[asyncio.Timeout] = field(default_factory=set)
    """Timeouts of control calls in progress, such as loads. They expire if the engine hangs."""
    in_flight_of_workers: int = 0
    """Other workers' requests, as they last reported."""
    in_flight_of_strangers: int = 0
    """Requests that did not come through Florin, according to its metrics at the last two scrapes."""
    unexplained: int = 0
    """Requests in its metrics at the last scrape beyond those that workers reported."""
    view: EngineView = field(init=False)
    """What the scheduler knows about it: requests in flight, and residency."""
    learned: LearnedCosts = field(init=False)
    answer_speed: AnswerSpeed = field(default_factory=AnswerSpeed)

    def __post_init__(self) -> None:
        costs, prior = (EngineCosts.merged() if self.engine.serves else EngineCosts() for _ in range(2))
        self.view = EngineView(self.engine.name, 0, 0, 0, costs)
        self.learned = LearnedCosts(costs, prior)
        self.registered(self.engine)

    def registered(self, engine: Engine) -> None:
        """Its registration has changed."""
        self.engine = engine
        view = self.view
        view.slots, view.max_rank, view.release = engine.slots, engine.max_rank, engine.release
        view.only, view.serves = engine.only, engine.serves
        self._label()
        self.credit.registered(engine.seats)
        if self.limited and view.limit == math.inf:
            view.limit = self.credit.value
        cpu_slots = max(engine.slots, engine.cpu_slots)
        if view.mirror is None or view.cpu_slots != cpu_slots:
            view.cpu_slots, view.mirror = cpu_slots, Mirror(engine.slots, cpu_slots)
        view.refresh()

    def process_seen(self, started: int) -> None:
        """Its process started then (Unix microseconds), according to its metrics; 0: unknown."""
        if started != self.process_started:
            self.process_started = started
            self._label()

    def _label(self) -> None:
        """A process that is not the registered one may be another build."""
        engine, labels = self.engine, self.engine.all_labels
        registered = 0 in (self.process_started, engine.started) or self.process_started == engine.started
        if engine.prompt_scores == "safe" and registered:
            labels |= SCORES_PROMPTS
        for task in engine.tasks:
            labels |= for_task(task)
        self.view.labels = labels
        self.view.removes = registered and driver_of(engine).removes(engine)

    @property
    def in_flight(self) -> int:
        """This worker's requests on it."""
        return self.view.in_flight

    def own_load(self) -> Load:
        """This worker's requests on it."""
        view = self.view
        versions = 0
        for version in view.uses:
            versions |= bit_of(version)
        return Load(view.in_flight + view.waiting, view.pending, versions)

    def heard(self, others: Load) -> None:
        """The other workers' requests on it."""
        if not (others.in_flight or others.pending or others.versions or self.in_flight_of_workers):
            return  # as most often
        self.in_flight_of_workers = others.in_flight
        active = others.distinct(self.own_load().versions)
        self.view.heard(others.in_flight + self.in_flight_of_strangers, others.pending, active)

    def scraped(self, running: int, waiting: int, own: int, of_workers: int) -> None:
        """Its metrics count so many requests. `own` and `of_workers`: this and the other workers' when the
        scrape began. One scrape may count requests that their worker has yet to report; two do not."""
        total = running + waiting
        self.credit.scraped(running, waiting, own + of_workers + self.in_flight_of_strangers)
        known = max(own, self.view.in_flight) + max(of_workers, self.in_flight_of_workers)
        last, self.unexplained = self.unexplained, max(0, total - known)
        self.in_flight_of_strangers = min(last, self.unexplained)
        self.view.others_in_flight = self.in_flight_of_workers + self.in_flight_of_strangers
        self.view.refresh()

    def announce_probe(self) -> None:
        if self.probe_done is not None:
            self.probe_done.set()
            self.probe_done = None

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it. Engines not probed yet count as healthy, so that a new worker
        can serve at once."""
        healthy = self.healthy is not False and not self.suspect and not self.ejection.hangs
        return healthy and self.engine.takes_requests

    def last_sign(self) -> float:
        """When it last showed activity."""
        if not self.leases:
            return self.last_activity
        return max(self.last_activity, *(lease.last_byte_at for lease in self.leases))

    def quiet_for(self, now: float) -> float:
        """Seconds in which nobody is known to have used it."""
        if self.leases or self.control_calls or self.view.others_in_flight or self.running:
            return 0.0
        return now - max(self.used_at, self.last_activity)

    @property
    def has_waiters(self) -> bool:
        """Whether anything waits for it."""
        if not self.leases:
            return bool(self.control_calls)
        return bool(self.control_calls) or any(lease.waits_from is not None for lease in self.leases)

    def __repr__(self) -> str:
        return f"<{self.engine.name} healthy={self.healthy} in_flight={self.in_flight}>"
