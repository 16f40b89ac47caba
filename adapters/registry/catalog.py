"""This process's read-only view of the registry, fed by `adapters.store.feed`.

Adapters are written by `registration`, engines by the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from adapters.model import (
    Adapter,
    BaseModel,
    Engine,
    Fingerprint,
    PendingDeletion,
    ServingStatus,
    Tombstone,
    Version,
    load,
)
from adapters.registry.canary import takes_canary
from adapters.store.protocol import Event

T = TypeVar("T")

Documents = dict[str, dict[str, str]]

_CACHED_NAMES = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's `model` resolves to: a version, or the base model itself (None)."""

    version: Version | None
    base_model: str
    canary: Target | None = None
    """Target of `weight` percent of the calls."""
    weight: int = 0

    def for_call(self, tenant: str, user: str) -> Target:
        """The target of one request, for all its attempts. Call it once per request."""
        canary = self.canary
        if canary is None or not takes_canary(canary.label, self.weight, tenant, user):
            return self
        return canary

    @property
    def engine_name(self) -> str:
        """Its name on engines."""
        return self.version.engine_name if self.version else self.base_model

    @property
    def label(self) -> str:
        """Its name for people: `acme/support@v3`, or the base model's name."""
        return self.version.id if self.version else self.base_model


class Catalog:
    """Adapters, versions, engines and base models by id, and the resolution of names."""

    def __init__(self) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.versions: dict[str, Version] = {}
        self.engines: dict[str, Engine] = {}
        self.bases: dict[str, BaseModel] = {}
        self.pins: set[str] = set()
        self.tombstones: dict[str, Tombstone] = {}
        """Tombstones of removed adapters, by full name."""
        self.pending_deletions: dict[str, PendingDeletion] = {}
        self.fingerprints: dict[str, Fingerprint] = {}
        self.serving_statuses: dict[str, ServingStatus] = {}
        """All three by engine name; fingerprints of base models by model name."""
        # Derived indexes, rebuilt when their sources change:
        self.by_engine_name: dict[str, Version] = {}
        self._numbers: dict[str, set[int]] = {}  # full name → the numbers of its versions
        self._shared: dict[str, dict[str, list[str]]] = {}  # tenant → bare name → full names shared with it
        self._resolved: dict[tuple[str, str, bool], Target] = {}
        self.generation = 0
        """Changes whenever the set of names or their resolution may have changed."""

    def __repr__(self) -> str:
        return (
            f"<Catalog {len(self.adapters)} adapters, {len(self.versions)} versions, "
            f"{len(self.engines)} engines>"
        )

    # -- called by the follower

    def load(self, documents: Documents) -> None:
        self.adapters = {i: load(Adapter, d) for i, d in documents.get("adapter", {}).items()}
        self.versions = {i: load(Version, d) for i, d in documents.get("version", {}).items()}
        self.engines = {i: load(Engine, d) for i, d in documents.get("engine", {}).items()}
        self.bases = {i: load(BaseModel, d) for i, d in documents.get("base", {}).items()}
        self.pins = set(documents.get("pin", {}))
        self.tombstones = {i: load(Tombstone, d) for i, d in documents.get("tombstone", {}).items()}
        self.pending_deletions = {
            i: load(PendingDeletion, d) for i, d in documents.get("pending_deletion", {}).items()
        }
        self.fingerprints = {i: load(Fingerprint, d) for i, d in documents.get("fingerprint", {}).items()}
        self.serving_statuses = {
            i: load(ServingStatus, d) for i, d in documents.get("serving_status", {}).items()
        }
        self.by_engine_name = {v.engine_name: v for v in self.versions.values()}
        self._numbers = {}
        for version in self.versions.values():
            self._numbers.setdefault(version.adapter, set()).add(version.number)
        self._reshare()

    def apply(self, event: Event) -> None:
        key, data = event.id, event.data
        match event.kind:
            case "adapter":
                _replace(self.adapters, key, None if data is None else load(Adapter, data))
                self._reshare()
            case "version":
                old = self.versions.get(key)
                if old:
                    self.by_engine_name.pop(old.engine_name, None)
                    self._numbers[old.adapter].discard(old.number)
                new = None if data is None else load(Version, data)
                _replace(self.versions, key, new)
                if new:
                    self.by_engine_name[new.engine_name] = new
                    self._numbers.setdefault(new.adapter, set()).add(new.number)
                self._forget()
            case "engine":
                _replace(self.engines, key, None if data is None else load(Engine, data))
            case "base":
                _replace(self.bases, key, None if data is None else load(BaseModel, data))
                self._forget()
            case "pin":
                self.pins.discard(key) if data is None else self.pins.add(key)
            case "serving_status":
                _replace(self.serving_statuses, key, None if data is None else load(ServingStatus, data))
                self._forget()
            case "fingerprint":
                _replace(self.fingerprints, key, None if data is None else load(Fingerprint, data))
            case "pending_deletion":
                _replace(self.pending_deletions, key, None if data is None else load(PendingDeletion, data))
            case "tombstone":
                _replace(self.tombstones, key, None if data is None else load(Tombstone, data))

    def _forget(self) -> None:
        self._resolved.clear()
        self.generation += 1

    def _reshare(self) -> None:
        self._forget()
        self._shared = {}
        for adapter in self.adapters.values():
            bare = adapter.name.partition("/")[2]
            for tenant in adapter.shared_with:
                self._shared.setdefault(tenant, {}).setdefault(bare, []).append(adapter.name)

    # -- called by requests

    def resolve(self, tenant: str, model: str, *, base_access: bool) -> Target | None:
        """Resolve `model` for `tenant`: its own adapters, then those shared with it, then the base model.

        None both for names that do not exist and for names that the tenant may not use.
        """
        key = (tenant, model, base_access)
        target = self._resolved.get(key)
        if target is None:
            target = self._resolve(tenant, model, base_access=base_access)
            if target is not None and len(self._resolved) < _CACHED_NAMES:
                self._resolved[key] = target
        return target

    def _resolve(self, tenant: str, model: str, *, base_access: bool) -> Target | None:
        name, at, number = model.partition("@v")
        adapter = self._find(tenant, name)
        if adapter is not None:
            if at and not (number.isascii() and number.isdigit() and str(int(number[:9])) == number):
                return None
            if at:
                return self._target(adapter, int(number))
            return self._split(adapter)
        if base_access and model in self.bases:
            return Target(None, model)
        return None

    def _split(self, adapter: Adapter) -> Target | None:
        """The live version, with the canary if there is one. A canary that has failed or is quarantined is
        left out, so its callers get the live version."""
        live = self._target(adapter, adapter.live)
        canary = self._target(adapter, adapter.canary)
        if live is None or canary is None or canary.engine_name in self.serving_statuses:
            return live
        return replace(live, canary=canary, weight=adapter.weight)

    def _target(self, adapter: Adapter, number: int | None) -> Target | None:
        version = self.versions.get(f"{adapter.name}@v{number}")
        if version is None or version.retired is not None:
            return None
        return Target(version, version.base_model)

    def _find(self, tenant: str, name: str) -> Adapter | None:
        if "/" not in name:
            own = self.adapters.get(f"{tenant}/{name}")
            if own:
                return own
            shared = self._shared.get(tenant, {}).get(name, [])
            return self.adapters.get(shared[0]) if len(shared) == 1 else None
        adapter = self.adapters.get(name)
        if adapter and (name.startswith(tenant + "/") or tenant in adapter.shared_with):
            return adapter
        return None

    def visible(self, tenant: str) -> list[Adapter]:
        """The adapters that `tenant` may call, its own first."""
        own = [a for a in self.adapters.values() if a.name.startswith(tenant + "/")]
        names = (name for found in self._shared.get(tenant, {}).values() for name in found)
        shared = [self.adapters[name] for name in names]
        return sorted(own, key=_by_name) + sorted(shared, key=_by_name)

    def versions_of(self, adapter: str) -> list[Version]:
        """All versions, oldest first, including retired ones. Numbers may have gaps, because `florin apply`
        can set them."""
        numbers = sorted(self._numbers.get(adapter, ()))
        return [self.versions[f"{adapter}@v{number}"] for number in numbers]

    def fleet(self, base_model: str) -> list[Engine]:
        return [e for e in self.engines.values() if e.base_model == base_model]


def _by_name(adapter: Adapter) -> str:
    return adapter.name


def _replace(table: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
