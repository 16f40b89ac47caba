"""What exists, as this process last heard it: a view of the registry, fed by `adapters.feed`.

Reads only. What writes adapters is `registration`; what writes engines is the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from adapters.model import Adapter, BaseModel, Engine, Version, load
from adapters.store import Event

T = TypeVar("T")

Documents = dict[str, dict[str, str]]

_CACHED_NAMES = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's `model` means: a version, or (None) the base model itself."""

    version: Version | None
    base_model: str

    @property
    def engine_name(self) -> str:
        """What engines call it."""
        return self.version.engine_name if self.version else self.base_model

    @property
    def label(self) -> str:
        """What people call it: `acme/support@v3`, or the base model's name."""
        return self.version.id if self.version else self.base_model


class Catalog:
    """Adapters, versions, engines and base models by id, and the resolution of names."""

    def __init__(self) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.versions: dict[str, Version] = {}
        self.engines: dict[str, Engine] = {}
        self.bases: dict[str, BaseModel] = {}
        self.pins: set[str] = set()
        # Derived, rebuilt when what they derive from changes:
        self.by_engine_name: dict[str, Version] = {}
        self._shared: dict[str, dict[str, list[str]]] = {}  # tenant → bare name → full names shared with it
        self._resolved: dict[tuple[str, str, bool], Target] = {}

    def __repr__(self) -> str:
        return (
            f"<Catalog {len(self.adapters)} adapters, {len(self.versions)} versions, "
            f"{len(self.engines)} engines>"
        )

    # -- fed by the follower

    def load(self, documents: Documents) -> None:
        self.adapters = {i: load(Adapter, d) for i, d in documents.get("adapter", {}).items()}
        self.versions = {i: load(Version, d) for i, d in documents.get("version", {}).items()}
        self.engines = {i: load(Engine, d) for i, d in documents.get("engine", {}).items()}
        self.bases = {i: load(BaseModel, d) for i, d in documents.get("base", {}).items()}
        self.pins = set(documents.get("pin", {}))
        self.by_engine_name = {v.engine_name: v for v in self.versions.values()}
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
                new = None if data is None else load(Version, data)
                _replace(self.versions, key, new)
                if new:
                    self.by_engine_name[new.engine_name] = new
                self._resolved.clear()
            case "engine":
                _replace(self.engines, key, None if data is None else load(Engine, data))
            case "base":
                _replace(self.bases, key, None if data is None else load(BaseModel, data))
                self._resolved.clear()
            case "pin":
                self.pins.discard(key) if data is None else self.pins.add(key)

    def _reshare(self) -> None:
        self._resolved.clear()
        self._shared = {}
        for adapter in self.adapters.values():
            bare = adapter.name.partition("/")[2]
            for tenant in adapter.shared_with:
                self._shared.setdefault(tenant, {}).setdefault(bare, []).append(adapter.name)

    # -- asked by requests

    def resolve(self, tenant: str, model: str, *, base_access: bool) -> Target | None:
        """What `model` means to `tenant`: its own adapters, then those shared with it, then the base model.

        None for what does not exist and for what is not the tenant's, alike.
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
            live = int(number) if at else adapter.live
            version = self.versions.get(f"{adapter.name}@v{live}")
            return Target(version, version.base_model) if version else None
        if base_access and model in self.bases:
            return Target(None, model)
        return None

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
        """The adapters that `tenant` may call, own ones first."""
        own = [a for a in self.adapters.values() if a.name.startswith(tenant + "/")]
        shared = [a for a in self.adapters.values() if tenant in a.shared_with]
        return sorted(own, key=_by_name) + sorted(shared, key=_by_name)

    def fleet(self, base_model: str) -> list[Engine]:
        return [e for e in self.engines.values() if e.base_model == base_model]


def _by_name(adapter: Adapter) -> str:
    return adapter.name


def _replace(table: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
