"""Looks at guarded canaries, on the one worker that holds the role.

What it decides is one commit that expects the comparison that was judged. So a leader that is killed has
either decided or not; one that has lost the role without noticing decides the same as its successor, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from adapters.errors import AdaptersError, StoreUnavailableError
from adapters.model import Adapter
from gateway.observability.conditions import Condition
from gateway.operations import canaries
from gateway.operations.state import State

log = logging.getLogger(__name__)

ROLE: Final = "canary-guard"
LEASE_MS: Final = 5_000
LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 30.0
"""Pause after a decision that could not be carried out."""
SHOWN_SECONDS: Final = 86_400
"""How long `florin doctor` tells of a rollback, unless someone promotes or rolls back the adapter before."""


@dataclass(slots=True)
class CanaryWatch:
    """Every worker runs one. Without a guarded canary, it asks the store nothing.

    While Redis is away, or this worker's views are stale, nothing is decided.
    """

    state: State
    owner: str
    look: float = LOOK_SECONDS
    # Mutable: decisions that are being carried out, by adapter. To load a version takes a while.
    _acting: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Run until cancelled."""
        leads = 0
        try:
            while True:
                await asyncio.sleep(self.look)
                guarded = self._guarded()
                if not guarded or not self.state.follower.connected:
                    continue
                with contextlib.suppress(StoreUnavailableError):  # the follower logs the outage
                    leads = await self.state.store.lead(ROLE, self.owner, LEASE_MS)
                    for adapter in guarded if leads else ():
                        await self.judge(adapter)
        finally:
            for task in self._acting.values():
                task.cancel()
            if leads:
                with contextlib.suppress(StoreUnavailableError):  # the role lapses anyway
                    await self.state.store.resign(ROLE, self.owner)

    def _guarded(self) -> list[Adapter]:
        found = map(self.state.catalog.adapters.get, self.state.catalog.with_canary)
        return [a for a in found if a is not None and a.guard is not None and not a.held]

    async def judge(self, adapter: Adapter) -> None:
        """Raises StoreUnavailableError."""
        task = self._acting.get(adapter.name)
        if task is not None and not task.done():
            return
        found = await canaries.compared(self.state, adapter)
        if found is None or found.judgement is None or found.judgement.verdict in ("waiting", "keep"):
            return
        self._acting[adapter.name] = asyncio.create_task(self._act(adapter, found))

    async def _act(self, adapter: Adapter, found: canaries.Compared) -> None:
        assert found.judgement is not None
        try:
            await canaries.carry_out(self.state, adapter, found.judgement)
        except AdaptersError as error:
            what = f"{adapter.name}@v{adapter.canary}"
            log.warning("Guard of canary %s: cannot %s: %s", what, found.judgement.verdict, error)
            await asyncio.sleep(RETRY_SECONDS)
        except Exception:  # a defect; the other canaries need their guard
            log.exception("Guard of canary %s failed", adapter.name)
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
