"""This process's read-only view of the registry, fed by `adapters.store.feed`.

Adapters are written by `registration`, engines by the admin API.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

import orjson

from adapters.model import (
    Adapter,
    BaseModel,
    D,
    Engine,
    Fingerprint,
    PendingDeletion,
    ServingStatus,
    Tombstone,
    Version,
    load,
)
from adapters.registry.canary import takes_canary
from adapters.registry.canary_figures import Comparison
from adapters.registry.document_tables import ByEngineName, ParsedOnUse, engine_name_of, put_or_drop
from adapters.store.protocol.registry import Event

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
    comparison: Comparison | None = None
    """What its requests count for, if it is the canary or the live version beside one."""

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
    def owner(self) -> str:
        """The tenant whose adapter it is; empty for the base model."""
        return self.version.tenant if self.version else ""

    @property
    def label(self) -> str:
        """Its name for people: `acme/support@v3`, or the base model's name."""
        return self.version.id if self.version else self.base_model


class Catalog:
    """Adapters, versions, engines and base models by id, and the resolution of names."""

    def __init__(self) -> None:
        self.generation = 0
        """Changes whenever the set of names or their resolution may have changed."""
        self.engine_changes = 0
        """Counts changes of engines' registrations."""
        self.load({})

    def __repr__(self) -> str:
        return (
            f"<Catalog {len(self.adapters)} adapters, {len(self.versions)} versions, "
            f"{len(self.engines)} engines>"
        )

    # -- called by the follower

    def load(self, documents: Documents) -> None:
        def loaded(kind: type[D], name: str) -> dict[str, D]:
            return {id_: load(kind, text) for id_, text in documents.get(name, {}).items()}

        self.adapters = loaded(Adapter, "adapter")
        self.versions = ParsedOnUse(Version, documents.get("version", {}))
        self.engines = loaded(Engine, "engine")
        self._engines_changed()
        self.bases = loaded(BaseModel, "base")
        self.pins = set(documents.get("pin", {}))
        self.tombstones = loaded(Tombstone, "tombstone")
        """Tombstones of removed adapters, by full name."""
        self.pending_deletions = loaded(PendingDeletion, "pending_deletion")
        self.fingerprints = ParsedOnUse(Fingerprint, documents.get("fingerprint", {}))
        self.serving_statuses = loaded(ServingStatus, "serving_status")
        """All three by engine name; fingerprints of base models by model name."""
        # Derived indexes:
        self.by_engine_name = ByEngineName(self.versions)
        self._numbers: dict[str, tuple[int, ...]] = {}  # full name → the numbers of its versions, ascending
        for id_ in self.versions:
            self._number(id_)
        self._shared: dict[str, dict[str, list[str]]] = {}  # tenant → bare name → full names shared with it
        self.with_canary: set[str] = set()
        """Full names of adapters with a canary."""
        self.with_outcome: set[str] = set()
        """Full names of those whose canary's guard has decided something."""
        for adapter in self.adapters.values():
            self._share(adapter)
            self._index_canary(adapter.name, adapter)
        self._forget()

    def apply(self, event: Event) -> None:
        """Costs the same however many documents there are."""
        key, data = event.id, event.data
        match event.kind:
            case "adapter":
                self._apply_adapter(key, None if data is None else load(Adapter, data))
                self._forget(key)
            case "version":
                self._apply_version(key, data)
                self._forget(_adapter_of(key))
            case "engine":
                put_or_drop(self.engines, key, None if data is None else load(Engine, data))
                self._engines_changed()
            case "base":
                put_or_drop(self.bases, key, None if data is None else load(BaseModel, data))
                self._forget()
            case "pin":
                self.pins.discard(key) if data is None else self.pins.add(key)
            case "serving_status":
                put_or_drop(self.serving_statuses, key, None if data is None else load(ServingStatus, data))
                if key in self.by_engine_name:  # else it is an engine's, or of a version that is gone
                    self._forget(_adapter_of(self.by_engine_name.ids[key]))
            case "fingerprint":
                self.fingerprints.put(key, data)
            case "pending_deletion":
                put_or_drop(
                    self.pending_deletions, key, None if data is None else load(PendingDeletion, data)
                )
            case "tombstone":
                put_or_drop(self.tombstones, key, None if data is None else load(Tombstone, data))

    def _engines_changed(self) -> None:
        self.engine_changes += 1
        self.tenants_with_engines = {e.tenant for e in self.engines.values() if e.tenant}
        """Tenants with engines of their own."""

    def _apply_adapter(self, name: str, new: Adapter | None) -> None:
        old = self.adapters.get(name)
        if old:
            self._unshare(old)
        put_or_drop(self.adapters, name, new)
        if new:
            self._share(new)
        self._index_canary(name, new)

    def _index_canary(self, name: str, adapter: Adapter | None) -> None:
        for names, holds in (
            (self.with_canary, adapter is not None and adapter.canary is not None),
            (self.with_outcome, adapter is not None and adapter.outcome is not None),
        ):
            names.add(name) if holds else names.discard(name)

    def _apply_version(self, id_: str, text: str | None) -> None:
        old = self.versions.texts.get(id_)
        self.versions.put(id_, text)
        if old is not None:
            self.by_engine_name.ids.pop(engine_name_of(old), None)
        if text is not None:
            self.by_engine_name.ids[engine_name_of(text)] = id_
        self._number(id_)

    def _number(self, id_: str) -> None:
        """Update the numbers of a version's adapter."""
        name, _, number = id_.rpartition("@v")
        others = [each for each in self._numbers.get(name, ()) if each != int(number)]
        numbers = sorted([*others, int(number)]) if id_ in self.versions else others
        put_or_drop(self._numbers, name, tuple(numbers) or None)

    def _share(self, adapter: Adapter) -> None:
        for tenant in adapter.shared_with:
            self._shared.setdefault(tenant, {}).setdefault(_bare(adapter.name), []).append(adapter.name)

    def _unshare(self, adapter: Adapter) -> None:
        for tenant in adapter.shared_with:
            self._shared[tenant][_bare(adapter.name)].remove(adapter.name)

    def _forget(self, adapter: str | None = None) -> None:
        """Resolve names again that this adapter may be called by; without one, all names."""
        if adapter is None:
            self._resolved: dict[str, dict[tuple[str, str, bool], Target]] = {}  # by bare name
            self._cached = 0
        else:
            self._cached -= len(self._resolved.pop(_bare(adapter), ()))
        self.generation += 1

    # -- called by requests

    def resolve(self, tenant: str, model: str, *, base_access: bool) -> Target | None:
        """Resolve `model` for `tenant`: its own adapters, then those shared with it, then the base model.

        None both for names that do not exist and for names that the tenant may not use.
        """
        key, bare = (tenant, model, base_access), _bare(model.partition("@v")[0])
        known = self._resolved.get(bare)
        target = known.get(key) if known else None
        if target is None:
            target = self._resolve(tenant, model, base_access=base_access)
            if target is not None and self._cached < _CACHED_NAMES:
                self._resolved.setdefault(bare, {})[key] = target
                self._cached += 1
        return target

    def _resolve(self, tenant: str, model: str, *, base_access: bool) -> Target | None:
        name, separator, number = model.partition("@v")
        adapter = self._find(tenant, name)
        if adapter is not None:
            if separator and not (number.isascii() and number.isdigit() and str(int(number[:9])) == number):
                return None
            if separator:
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
        comparison = Comparison.of(adapter, canary.engine_name)
        canary = replace(canary, comparison=comparison)
        return replace(live, canary=canary, weight=adapter.weight, comparison=comparison)

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
        names = (name for shared_names in self._shared.get(tenant, {}).values() for name in shared_names)
        shared = [self.adapters[name] for name in names]
        return sorted(own, key=_by_name) + sorted(shared, key=_by_name)

    def versions_of(self, adapter: str) -> list[Version]:
        """All versions, oldest first, including retired ones. Numbers may have gaps, because `florin apply`
        can set them."""
        return [self.versions[f"{adapter}@v{number}"] for number in self._numbers.get(adapter, ())]

    def with_digests(self, digests: Container[str]) -> list[Version]:
        """The versions with these contents. Parses no others: all would hold up requests for 50 ms."""
        texts = self.versions.texts
        return [self.versions[id_] for id_, text in texts.items() if orjson.loads(text)["digest"] in digests]

    def fleet(self, base_model: str) -> list[Engine]:
        return [e for e in self.engines.values() if e.base_model == base_model]


def _bare(name: str) -> str:
    """`support` of `acme/support`, and of `support`."""
    return name.partition("/")[2] or name


def _adapter_of(version: str) -> str:
    return version.rpartition("@v")[0]


def _by_name(adapter: Adapter) -> str:
    return adapter.name
