"""The engines as this worker sees them: one state for each registered engine."""

from __future__ import annotations

from collections.abc import Callable

from adapters.model import Engine
from adapters.registry.catalog import Catalog
from gateway.routing.engine_state import EngineState
from gateway.routing.outlier_ejection import EjectionState


class Pool:
    """All registered engines, with what this worker knows about each.

    There is one `EngineState` for each engine in the catalog, created when first needed and never
    replaced: an engine that leaves the registry is forgotten. `EngineHealth` and `HangDetector` write their
    health, `Leases` the requests in flight; `Fleets` shows them to the scheduler.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.on_removed: Callable[[EngineState], None] = lambda _state: None
        """Called with each engine that has left the registry. Set by `EngineHealth`."""
        self.known: dict[str, EngineState] = {}
        """Mutable: the states by name. `state` and `states` update them from the catalog."""
        self.limited = False
        """Whether requests on engines are limited by their credit. Set by `Turns`."""
        self._listed: dict[str, Engine] | None = None
        """The registry when `_states` were listed; None: never, or `known` has changed since."""
        self._states: list[EngineState] = []
        self._is_new = False
        """Whether engines that appear now are new to the fleet, not just to this worker."""

    def __repr__(self) -> str:
        return f"<Pool {list(self.known.values())}>"

    def state(self, name: str) -> EngineState | None:
        """The engine's state, updated from its registration; None: it is not registered."""
        engine = self.catalog.engines.get(name)
        if engine is None:
            gone = self.known.pop(name, None)
            if gone:
                self._listed = None
                self.on_removed(gone)
            return None
        state = self.known.get(name)
        if state is None:
            self._listed = None
            state = self.known[name] = EngineState(engine, new=self._is_new, limited=self.limited)
        elif state.engine is not engine:
            if state.engine.url != engine.url:
                state.healthy, state.suspect, state.new = None, False, True
                state.ejection, state.counter_sum = EjectionState(), None
            state.registered(engine)
        return state

    def states(self) -> list[EngineState]:
        engines = self.catalog.engines
        if engines != self._listed:  # what has not changed is not compared in depth
            names = [*engines, *(n for n in self.known if n not in engines)]
            self._states = [s for n in names if (s := self.state(n))]
            self._listed, self._is_new = dict(engines), True
        return list(self._states)

    def process(self, engine: Engine) -> str:
        """Identifies the engine's current process in the same way in every worker; empty if unknown."""
        state = self.state(engine.name)
        started = state.process_started if state else 0
        return f"{engine.url} {engine.epoch} {started}" if engine.epoch or started else ""

    def usable(self, name: str) -> bool:
        state = self.state(name)
        return state is not None and state.usable
