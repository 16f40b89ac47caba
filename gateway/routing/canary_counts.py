"""Counts how canaries and the live versions beside them answer, and engines on trial and the others beside
them, for the guard and for people who look.

A request costs a few writes to a dict, and only if it is compared with others; one exchange with the store
every quarter of a second reports them. If several engines tried a request, only the first attempt that
says something about the version counts: the others are not independent observations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.model import Engine
from adapters.registry.canary_figures import (
    FAILURES,
    FIRST_TOKEN,
    PER_TOKEN,
    REQUESTS,
    ArmName,
    Comparison,
    bucket,
    field_of,
)
from adapters.registry.catalog import Target
from adapters.store.protocol.canaries import CanaryStore
from gateway.routing.engine_state import AnsweredAttempt, Lease

REPORT_SECONDS: Final = 0.25
KEPT_SECONDS: Final = 3600
"""How long a comparison's counts outlive its window after the last report."""
LOSS_SECONDS: Final = 10
"""An engine that dies loses many requests at once, which is one observation: in each comparison, one loss of
each side on each engine counts within this time."""
_VERSIONS_FAULT: Final = frozenset({"status_5xx", "malformed"})
_LOSSES: Final = frozenset({"died", "down", "hung", "first_byte", "idle"})
"""Reasons of `RetryElsewhere` and `Lease.abandoned`. The others say nothing about the version: the engine was
full, stopping or not reachable, or the request's own deadline passed."""

_Count = tuple[int, ArmName, str]


class CanaryCounts:
    """Mutable: what is not reported yet. Use it from the worker's event loop only."""

    def __init__(self, store: CanaryStore, clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds."""
        self._store = store
        self._clock = clock
        self._pending: dict[Comparison, dict[_Count, int]] = {}
        self._losses: dict[tuple[str, ArmName, str], int] = {}

    def __repr__(self) -> str:
        return f"<CanaryCounts of {len(self._pending)} canaries>"

    def begin(self, target: Target, *, batch: bool) -> ComparedRequest | None:
        """A request to `target`, for all its attempts; None: nothing is to be counted. Requests for a
        version by its number do not count, since they were not assigned at random."""
        comparison = target.comparison
        if comparison is None:
            return None
        return ComparedRequest(self, comparison, "canary" if target.canary is None else "live", batch=batch)

    def of_trial(self, engine: Engine, arm: ArmName, on: str, *, batch: bool) -> ComparedRequest:
        """A request that counts in the trial of `engine`, as far as it is answered `on` that engine: another
        attempt says nothing about this one's."""
        return ComparedRequest(self, Comparison.of_trial(engine), arm, batch=batch, on=on)

    def add(self, comparison: Comparison, arm: ArmName, *names: str) -> None:
        counts = self._pending.get(comparison)
        if counts is None:
            counts = self._pending[comparison] = {}
        index = comparison.slice_at(self._clock())
        for name in names:
            key = (index, arm, name)
            counts[key] = counts.get(key, 0) + 1

    def first_loss(self, comparison: Comparison, arm: ArmName, engine: str) -> bool:
        """Whether this loss of a request counts; see LOSS_SECONDS."""
        now, key = self._clock(), (comparison.key, arm, engine)
        recent = now - self._losses.get(key, -LOSS_SECONDS * 1_000_000) < LOSS_SECONDS * 1_000_000
        if not recent:
            self._losses[key] = now
        return not recent

    async def run(self) -> None:
        """Report until cancelled. Call `report` once more afterwards."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            with contextlib.suppress(StoreUnavailableError):
                await self.report()

    async def report(self) -> None:
        """Report what is pending. If that fails, it is forgotten: the store may have added it, and a failure
        that is counted twice would weigh more than one that is not. Raises StoreUnavailableError."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        oldest = self._clock() - LOSS_SECONDS * 1_000_000
        self._losses = {key: lost_at for key, lost_at in self._losses.items() if lost_at > oldest}
        await self._store.count_canaries(
            {
                comparison.key: (
                    comparison.window // 1000 + KEPT_SECONDS * 1000,
                    {field_of(*count): n for count, n in counts.items()},
                )
                for comparison, counts in pending.items()
            }
        )


class ComparedRequest:
    """One request whose outcome counts, once."""

    __slots__ = ("_arm", "_batch", "_comparison", "_counted", "_counts", "_on")

    def __init__(
        self, counts: CanaryCounts, comparison: Comparison, arm: ArmName, *, batch: bool, on: str = ""
    ) -> None:
        """`on`: the only engine whose attempts count; empty: those of all do."""
        self._counts = counts
        self._comparison = comparison
        self._arm = arm
        self._batch = batch
        self._on = on
        self._counted = False

    def ended(self, lease: Lease, *, answers: int, loads: int) -> None:
        """An attempt has ended. `answers`: choices of the answer, 0 for vectors. `loads`: adapter loads that
        the request has caused; it then says nothing about the version's latency."""
        record = lease.record
        if record is None or self._counted:
            return
        if self._on and lease.state.engine.name != self._on:
            return
        outcome, timed = record.outcome, not (loads or self._batch)
        if outcome == "ok":
            self._count(REQUESTS, *(_latencies(record, answers) if timed else ()))
        elif outcome == "client_abort":
            # Its wait so far: clients that wait too long leave, and their waits would otherwise go unseen.
            if timed and lease.streams and not record.first:
                self._count(f"{FIRST_TOKEN}{bucket(record.ended - record.start)}")
        elif self._failed(lease):
            self._count(REQUESTS, FAILURES)

    def _count(self, *what: str) -> None:
        self._counted = True
        self._counts.add(self._comparison, self._arm, *what)

    def _failed(self, lease: Lease) -> bool:
        reason = lease.trouble or lease.abandoned
        if reason in _LOSSES:
            return self._counts.first_loss(self._comparison, self._arm, lease.state.engine.name)
        return reason in _VERSIONS_FAULT


def _latencies(record: AnsweredAttempt, answers: int) -> list[str]:
    """From dispatch to an engine, so without waiting for an engine and for a load. A whole answer has no time
    to the first token, and all of its time counts for its tokens; vectors have nothing else."""
    tokens = record.tokens[2]
    if not answers:
        return [f"{FIRST_TOKEN}{bucket(record.ended - record.start)}"]
    if not record.first:
        if answers > 1 or not tokens:
            return []
        return [f"{PER_TOKEN}{bucket((record.ended - record.start) // tokens)}"]
    buckets = [f"{FIRST_TOKEN}{bucket(record.first - record.start)}"]
    if answers == 1 and tokens > 1:
        buckets.append(f"{PER_TOKEN}{bucket((record.ended - record.first) // (tokens - 1))}")
    return buckets
