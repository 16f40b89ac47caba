"""Requests that wait for an engine, by base model: this worker's, and those of the others."""

from __future__ import annotations

from collections import Counter

from adapters.registry.catalog import Target
from adapters.store.protocol.loads import Load, Loads, bit_of

PREFIX = "unplaced/"
"""Marks base models among engines in the workers' reports; engines' names have no slash."""
_NONE = Load()


class Unplaced:
    """Mutable: `Router` adds and removes requests, `Leases` exchanges the counts."""

    def __init__(self) -> None:
        self._own: dict[str, Counter[str]] = {}
        """Base model → version's name on engines (empty: the base model itself) → requests."""
        self._others: dict[str, Load] = {}

    def __repr__(self) -> str:
        return f"<Unplaced {self._own}>"

    def add(self, target: Target) -> None:
        self._own.setdefault(target.base_model, Counter())[_version(target)] += 1

    def remove(self, target: Target) -> None:
        waiting, version = self._own[target.base_model], _version(target)
        waiting[version] -= 1
        if not waiting[version]:
            del waiting[version]
            if not waiting:
                del self._own[target.base_model]

    def report(self) -> dict[str, Load]:
        """For the other workers."""
        return {PREFIX + base: self._load(base) for base in self._own}

    def heard(self, others: Loads) -> None:
        self._others = {name: load for name, load in others.items() if name.startswith(PREFIX)}

    def everywhere(self, base_model: str) -> tuple[int, int]:
        """All workers' requests that wait, and their distinct adapters."""
        load = self._load(base_model) + self._others.get(PREFIX + base_model, _NONE)
        return load.in_flight, load.versions.bit_count()

    def _load(self, base_model: str) -> Load:
        versions = 0
        for version in (waiting := self._own.get(base_model, Counter[str]())):
            versions |= bit_of(version) if version else 0
        return Load(waiting.total(), versions=versions)


def _version(target: Target) -> str:
    return target.version.engine_name if target.version else ""
