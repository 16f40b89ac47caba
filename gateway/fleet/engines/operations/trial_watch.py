"""Looks at engines on trial, on the one worker that holds the role.

What it decides is one commit that expects the comparison that was judged, as for canaries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from adapters.drivers import driver_of
from adapters.errors import AdaptersError, StoreUnavailableError
from adapters.model import Engine
from gateway.fleet.engines.operations import trials
from gateway.observability.conditions import Condition
from gateway.operations.state import State

log = logging.getLogger(__name__)

ROLE: Final = "engine-trials"


@dataclass(frozen=True, slots=True)
class TrialWatch:
    """The passes of the worker that leads. While Redis is away, nothing is decided."""

    state: State

    def ready(self) -> bool:
        """No leader is needed without an engine on trial."""
        return any(e.on_trial for e in self._engines()) and self.state.follower.connected

    async def work(self) -> None:
        """A leader's pass. A failure with one engine does not affect the others. Raises
        StoreUnavailableError."""
        for engine in [engine for engine in self._engines() if engine.on_trial]:
            try:
                await self.judge(engine)
            except StoreUnavailableError:
                raise
            except AdaptersError as error:
                log.warning("Trial of engine %s: %s", engine.name, error)

    async def judge(self, engine: Engine) -> None:
        """Judge one engine, and act if the guard says so: but an engine that no other replaces
        is not drained. Raises NotFoundError, StoreUnavailableError."""
        judgement = (await trials.compared(self.state, engine)).judgement
        if judgement.verdict in ("waiting", "keep"):
            return
        if judgement.verdict == "rollback" and not self._replaceable(engine):
            return
        await trials.carry_out(self.state, engine, judgement)

    def _replaceable(self, engine: Engine) -> bool:
        fleet = self.state.catalog.fleet(engine.base_model)
        return any(e.replaces(engine) and self.state.pool.usable(e.name) for e in fleet)

    def _engines(self) -> list[Engine]:
        return [engine for engine in self.state.catalog.engines.values() if engine.trial is not None]

    def conditions(self) -> Iterator[Condition]:
        """Engines that their guards have drained."""
        for engine in self._engines():
            if engine.trial is not None and engine.trial.stopped:
                build = " ".join(filter(None, (driver_of(engine).title, engine.version)))
                message = f"The guard of its trial ({build}) drained it. {engine.trial.stopped}"
                yield Condition("engine_trial_stopped", engine.name, message)
