"""The fleets as the scheduler sees them: one `Fleet` for each base model, kept up to date."""

from __future__ import annotations

import time
from collections.abc import Callable

from adapters.model import Engine, SlotState, Task, Version
from adapters.placement.residency import Residency
from adapters.placement.scheduling.filters import DRAINING, UNHEALTHY
from adapters.placement.scheduling.slow_start import share_after
from adapters.placement.scheduling.view import EngineView, Fleet
from gateway.routing.engine_state import EngineState
from gateway.routing.pool import Pool


def _trusted(_engine: Engine) -> bool:
    return False


_NO_TASKS: tuple[frozenset[Task], frozenset[Task]] = frozenset(), frozenset()


class Fleets:
    """Joins the pool, the placement and the registrations to what policies read.

    Engines' loads are kept by their leases. Everything else about an engine is checked when it is about to be
    chosen (`check`): that is one engine of many, and nobody has to report each change.
    """

    def __init__(
        self,
        pool: Pool,
        residency: Residency,
        *,
        hanging: Callable[[EngineState], str] = lambda _state: "",
        suspect: Callable[[Engine], bool] = _trusted,
        slow_start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hanging` describes a hung engine; `suspect` tells whether versions fail verification on an engine.
        `slow_start`: seconds until an engine that came up gets its full share of requests."""
        self._pool = pool
        self._residency = residency
        self._hanging = hanging
        self.suspect = suspect
        self.slow_start = slow_start
        self._clock = clock
        residency.on_change = self._placement_changed
        self._fleets: dict[str, Fleet] = {}
        self._tasks: dict[str, tuple[frozenset[Task], frozenset[Task]]] = {}
        self._contexts: dict[str, int] = {}
        self._generation = (-1, -1)

    def of(self, base_model: str) -> Fleet:
        """The engines that serve the base model, usable or not."""
        catalog = self._pool.catalog
        generation = (catalog.engine_changes, len(catalog.engines))
        if generation != self._generation:
            self._rebuild()
            self._generation = generation
        fleet = self._fleets.get(base_model)
        if fleet is None:
            fleet = self._fleets[base_model] = Fleet({}, self._residency.places, self._check)
        return fleet

    def tasks(self, base_model: str) -> tuple[frozenset[Task], frozenset[Task]]:
        """What at least one engine of the fleet is for, and what all are for."""
        self.of(base_model)
        return self._tasks.get(base_model, _NO_TASKS)

    def context(self, base_model: str) -> int:
        """Most tokens of a prompt and its answer that any engine of the fleet takes; 0: not known of all."""
        self.of(base_model)
        return self._contexts.get(base_model, 0)

    def _rebuild(self) -> None:
        self._fleets = {}
        self._tasks = {}
        self._contexts = {}
        for state in sorted(
            self._pool.states(), key=lambda s: s.engine.name
        ):  # so that workers agree on ties
            engine = state.engine
            fleet = self._fleets.setdefault(engine.base_model, Fleet({}, self._residency.places, self._check))
            fleet.engines[engine.name] = state.view
            if engine.trial is not None and engine.on_trial:
                fleet.trials[engine.name] = engine.trial.share / 100
            offered = frozenset(engine.tasks)
            some, all_ = self._tasks.get(engine.base_model, (offered, offered))
            self._tasks[engine.base_model] = some | offered, all_ & offered
            longest = self._contexts.get(engine.base_model, engine.max_model_len)
            known = longest and engine.max_model_len
            self._contexts[engine.base_model] = max(longest, engine.max_model_len) if known else 0
            state.view.held = self._residency.held(engine.name)

    def holders(self, version: Version) -> list[EngineState]:
        """The usable engines that hold the version."""
        names = self._residency.holders(version.engine_name)
        return [state for name in names if (state := self._pool.state(name)) is not None and state.usable]

    def _placement_changed(
        self, engine: str, version: str, before: SlotState | None, after: SlotState | None
    ) -> None:
        state = self._pool.known.get(engine)
        if state is not None:
            state.view.changed(version, before, after)

    def _check(self, view: EngineView) -> None:
        state = self._pool.known[view.name]
        engine = state.engine
        if state.healthy is False or state.suspect:
            view.blocked = UNHEALTHY
        elif state.ejection.hangs:
            view.blocked = self._hanging(state)
        else:
            view.blocked = "" if engine.takes_requests else DRAINING
        if not engine.takes_adapters:
            view.closed = "cordoned: takes no new adapters"
        elif state.ejection.probed:
            view.closed = "may hang: takes no new adapters until it answers a probe"
        else:
            suspect = self.suspect(engine)
            view.closed = "suspect: versions loaded there fail verification" if suspect else ""
        pins, holders = self._pool.catalog.pins, self._residency.holders
        view.pinned = 0
        if pins:  # each protects its version's last holder
            view.pinned = sum(
                v in pins and s.placement.state is not SlotState.CACHED and set(holders(v)) <= {view.name}
                for v, s in view.held.items()
            )
        share = 1.0 if state.slow_from is None else self._share(state, state.slow_from)
        if share != view.share or view.doubtful != state.ejection.probed:
            view.share, view.doubtful = share, state.ejection.probed
            view.refresh()

    def _share(self, state: EngineState, slow_from: float) -> float:
        share = share_after(self._clock() - slow_from, self.slow_start)
        if share >= 1:
            state.slow_from = None  # its slow start is over
        return share
