"""This worker's leases: acquired for each attempt, and reported to the other workers, which report theirs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from adapters.errors import StoreUnavailableError
from adapters.model import Version
from adapters.store.protocol.loads import Heard, Load
from adapters.store.protocol.placement import PlacementStore, Touch
from gateway.routing.engine_state import Lease, Use
from gateway.routing.pool import Pool
from gateway.routing.prefixes import PrefixMemory
from gateway.routing.queue_ticket import QueueTicket
from gateway.routing.request_identity import RequestIdentity
from gateway.routing.turns import Turns
from gateway.routing.unplaced import Unplaced

FLUSH_SECONDS = 0.1
LEAST_SECONDS = 0.02
"""Least time between two exchanges, if requests wait."""
LEASE_MS = 5_000
"""A worker's leases outlive it by at most this long."""
RENEW_SECONDS = 1.5
IDLE_SECONDS = 1.0
"""Time between exchanges while no worker has a request in flight."""
FORGET_SECONDS = 60.0
"""Time without a request after which the use of a version is forgotten."""
_NO_LOAD = Load()
NOTHING = Heard()


class Leases:
    """The router acquires a lease for each attempt, and `Lease.end` gives it back exactly once.

    `run` tells the store which versions are in use, so that no other worker evicts them, and exchanges the
    requests on each engine with the other workers. A worker that dies stops doing so, and its leases and
    report expire after LEASE_MS. Use it from the worker's event loop only.
    """

    def __init__(
        self,
        pool: Pool,
        store: PlacementStore,
        worker: str,
        *,
        turns: Turns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self.turns = turns or Turns(pool, enabled=False, clock=clock)
        self.turns.hurry = self._hurry
        self._store = store
        self._worker = worker
        self._clock = clock
        self.unplaced = Unplaced()
        self.prefixes = PrefixMemory()
        self._flushing = asyncio.Lock()
        self._soon = asyncio.Event()
        """An exchange is wanted soon."""
        self._trial_ended = asyncio.Event()
        """Mutable: replaced whenever a trial ends."""
        self._exchanged = -math.inf
        """When the other workers were last heard."""
        self._busy = False
        """Whether any worker had requests in flight then."""
        self._heard = False
        """Whether another had."""

    def __repr__(self) -> str:
        return f"<Leases {self.in_flight} in flight>"

    def acquire(
        self,
        name: str,
        served: Version | None,
        identity: RequestIdentity | None = None,
        *,
        trial: bool = False,
        prompt_tokens: int = 0,
        ticket: QueueTicket | None = None,
    ) -> Lease | None:
        """A lease for one request; None: the engine has left the registry. `trial`: the request may have
        killed an engine, so other suspects avoid this engine until it is answered. `ticket`: its charge
        passes to the lease."""
        state = self._pool.state(name)
        if state is None:
            return None
        version = served.engine_name if served else ""
        lease = Lease(state, version, self._clock, identity=identity, prompt_tokens=prompt_tokens)
        lease.deaths, lease.outages = state.deaths, state.outages
        if ticket is not None and ticket.charge is not None:
            lease.charge, ticket.charge, lease.on_end = ticket.charge, None, self.turns.ended
            lease.charge.engine = name
        if trial:
            lease.on_trial = self._announce_trial_end
            state.trials.add(lease)
        state.view.sent(version, prompt_tokens)
        state.leases.add(lease)
        if version:
            use = state.uses.get(version)
            if use is None:
                use = state.uses[version] = Use()
            use.in_flight += 1
            use.last_used = self._clock()
            use.dirty = True
        return lease

    @property
    def in_flight(self) -> int:
        """This worker's requests on all engines."""
        return sum(state.in_flight for state in self._pool.known.values())

    # -- reports to the store

    async def run(self) -> None:
        """Flush until cancelled. Call `flush` once more afterwards."""
        while True:
            self._soon.clear()
            with contextlib.suppress(StoreUnavailableError):  # stays dirty, and is reported later
                await self.flush()
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS - LEAST_SECONDS):
                    await self._soon.wait()

    def _hurry(self) -> None:
        self._soon.set()

    async def flush(self) -> None:
        """Report this worker's leases, its uses since the last report, and its requests to the store, and
        hear of the other workers' requests."""
        async with self._flushing:
            now = self._clock()
            reported: list[Use] = []
            touches: list[Touch] = []
            loads: dict[str, Load] = {}
            for name, state in self._pool.known.items():
                if state.view.in_flight or state.view.waiting:
                    loads[name] = state.own_load()
                for version, use in list(state.uses.items()) if state.uses else ():
                    due = use.in_flight > 0 and now - use.reported > RENEW_SECONDS
                    if use.dirty or due:
                        age = int((now - use.last_used) * 1000)
                        touches.append(Touch(name, version, age, use.in_flight))
                        reported.append(use)
                        use.dirty = False
                    elif use.in_flight == 0 and now - use.last_used > FORGET_SECONDS:
                        del state.uses[version]
            loads |= self.unplaced.report() | self.prefixes.report(now)
            note = self.turns.report()
            if not touches and not loads and not self._busy and now - self._exchanged < IDLE_SECONDS:
                return
            try:
                heard = await self._store.touch(
                    self._worker, touches, ttl_ms=LEASE_MS, loads=loads, note=note
                )
            except BaseException:  # a cancellation too
                for use in reported:
                    use.dirty = True
                if now - self._exchanged > LEASE_MS / 1000:
                    self._hear(NOTHING)
                raise
            self._hear(heard)
            self._exchanged, self._busy = now, bool(loads or heard.loads)
            for use in reported:
                use.reported = now

    def _hear(self, heard: Heard) -> None:
        if heard.loads or self._heard:
            for name, state in self._pool.known.items():
                state.heard(heard.loads.get(name, _NO_LOAD))
        self._heard = bool(heard.loads)
        self.unplaced.heard(heard.loads)
        self.prefixes.heard(heard.loads, self._clock())
        self.turns.hear(heard.notes)

    # -- requests that may have killed an engine

    def trials(self) -> list[Lease]:
        """Leases of requests that may have killed an engine."""
        return [lease for state in self._pool.known.values() for lease in state.trials]

    def identical(self, identity: RequestIdentity) -> bool:
        """Whether an identical request is on an engine now."""
        return any(
            lease.identity.fingerprint == identity.fingerprint
            for state in self._pool.known.values()
            for lease in state.leases
            if lease.identity and lease.identity.group == identity.group
        )

    async def wait_for_trial(self, seconds: float) -> None:
        """Wait until a trial has ended, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._trial_ended.wait()

    def _announce_trial_end(self) -> None:
        self._trial_ended.set()
        self._trial_ended = asyncio.Event()
