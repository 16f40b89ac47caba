"""Looks at guarded canaries, on the one worker that holds the role.

What it decides is one commit that expects the comparison that was judged. So a leader that is killed has
either decided or not; one that has lost the role without noticing decides the same as its successor, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from adapters.errors import AdaptersError, StoreUnavailableError
from adapters.model import Adapter
from adapters.registry.canary_guard import Evaluation, Judgement
from gateway.errors import FlorinError
from gateway.fleet.adapters.operations import canaries
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.observability.conditions import Condition
from gateway.operations.state import State

log = logging.getLogger(__name__)

ROLE: Final = "canary-guard"
LEASE_MS: Final = 5_000
LOOK_SECONDS: Final = 1.0
EVALUATION_SECONDS: Final = 5.0
"""Pause between reads of canaries' evaluations."""
RETRY_SECONDS: Final = 30.0
"""Pause after the weight of a canary could not be raised."""
SHOWN_SECONDS: Final = 86_400
"""How long `florin doctor` tells of a rollback, unless someone promotes or rolls back the adapter before."""


@dataclass(slots=True)
class CanaryWatch:
    """The passes of the worker that leads. While Redis is away, or this worker's views are stale, nothing is
    decided."""

    state: State
    # Mutable: canaries whose weight is being raised, by adapter.
    _raising: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    # Mutable: the evaluation of a canary as last read, by the comparison's adapter and beginning.
    _evaluations: dict[tuple[str, int], Evaluation] = field(default_factory=dict)
    _reading: asyncio.Task[None] | None = None

    def ready(self) -> bool:
        """No leader is needed without a guarded canary."""
        return bool(self._guarded()) and self.state.follower.connected

    async def lost(self) -> None:
        """Another worker leads."""
        for task in (*self._raising.values(), self._reading):
            if task is not None:
                task.cancel()

    async def work(self) -> None:
        """A leader's pass. Raises StoreUnavailableError."""
        guarded = self._guarded()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_evaluations(guarded))
        for adapter in guarded:
            await self._judge(adapter)

    def _guarded(self) -> list[Adapter]:
        adapters = map(self.state.catalog.adapters.get, self.state.catalog.with_canary)
        return [a for a in adapters if a is not None and a.guard is not None and not a.held]

    async def _read_evaluations(self, guarded: list[Adapter]) -> None:
        """Read in a task of its own, because a leader's pass must not wait for a slow ledger."""
        evaluations = {(a.name, a.canary_since): await canaries.evaluation_of(self.state, a) for a in guarded}
        self._evaluations = evaluations
        await asyncio.sleep(EVALUATION_SECONDS)

    async def _judge(self, adapter: Adapter) -> None:
        """A failure with one canary does not affect the others. Raises StoreUnavailableError."""
        try:
            await self.judge(adapter)
        except StoreUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect too; the other canaries need their guard
            _log_failure(adapter, error)

    async def judge(self, adapter: Adapter) -> None:
        """Judge one canary, and stop it if the guard says so. Its weight is raised in a task of its own,
        because the version is loaded first: a canary that turns bad meanwhile is still stopped. Raises
        StoreUnavailableError."""
        evaluation = self._evaluations.get((adapter.name, adapter.canary_since), "none")
        comparison = await canaries.compared(self.state, adapter, evaluation)
        verdict = None if comparison is None else comparison.judgement
        if verdict is None or verdict.verdict in ("waiting", "keep"):
            return
        raising = self._raising.get(adapter.name)
        busy = raising is not None and not raising.done()
        if verdict.verdict != "promote":
            if raising is not None:
                raising.cancel()
            await canaries.carry_out(self.state, adapter, verdict)
        elif not busy:
            self._raising[adapter.name] = asyncio.create_task(self._raise(adapter, verdict))

    async def _raise(self, adapter: Adapter, verdict: Judgement) -> None:
        try:
            await canaries.carry_out(self.state, adapter, verdict)
        except Exception as error:  # noqa: BLE001 - likewise
            _log_failure(adapter, error)
            await asyncio.sleep(RETRY_SECONDS)

    def conditions(self) -> Iterator[Condition]:
        """Canaries that guards hold, or have rolled back lately."""
        catalog, now = self.state.catalog, self.state.clock.now()
        for name in sorted(catalog.with_outcome):
            adapter = catalog.adapters.get(name)
            outcome = adapter.outcome if adapter else None
            if outcome is None or outcome.verdict == "promote":
                continue
            if outcome.verdict == "rollback" and now - outcome.at > SHOWN_SECONDS * 1_000_000:
                continue
            done = "holds it" if outcome.verdict == "hold" else "rolled it back"
            subject = f"{name}@v{outcome.version}"
            yield Condition("canary_stopped", subject, f"The canary's guard {done}. {outcome.reason}")


def _log_failure(adapter: Adapter, error: Exception) -> None:
    expected = isinstance(error, AdaptersError | FlorinError | LedgerUnavailableError)
    log.warning("Guard of canary %s@v%s: %s", adapter.name, adapter.canary, error, exc_info=not expected)
