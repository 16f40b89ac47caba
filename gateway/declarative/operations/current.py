"""The registry as a document: what `florin export` writes, and what a plan starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from adapters.model import Adapter, BaseModel, CanaryOutcome, Engine, Tombstone, Version
from adapters.registry.catalog import Catalog
from gateway.costs.periods import iso
from gateway.costs.prices.book import Price
from gateway.costs.prices.schemas import NewPrice
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.selling import Selling, assignments_in_force, cards_in_force
from gateway.declarative.operations.specs import (
    AdapterSpec,
    BaseSpec,
    CanarySpec,
    EngineSpec,
    KeySpec,
    PinsSpec,
    RemovedSpec,
    TenantSpec,
    VersionSpec,
)
from gateway.schemas.base import GuardSpec, StrictBody
from gateway.tenants.directory import Directory, Key, Pins, Role, Tenant
from gateway.tenants.schemas.terms import BudgetTerms, LimitTerms, PolicyTerms, QuotaTerms, ScopeTerms

S = TypeVar("S", bound=StrictBody)


@dataclass(frozen=True, slots=True)
class Current:
    """All sections and fields of `document` are there, but for what is not known."""

    document: Document
    retired: Mapping[str, str] = field(default_factory=dict)
    """Ids of versions that can no longer be called → their digests."""
    outcomes: Mapping[str, CanaryOutcome] = field(default_factory=dict)
    """Full names of adapters → what the guard of their last canary decided."""
    selling: Selling = field(default_factory=Selling)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The registry at one moment. Taken on the event loop, read in any thread."""

    bases: Mapping[str, BaseModel]
    engines: Mapping[str, Engine]
    adapters: Mapping[str, Adapter]
    versions: Mapping[str, Version]
    tombstones: Mapping[str, Tombstone]
    tenants: Mapping[str, Tenant]
    keys: Mapping[str, Key]

    @classmethod
    def take(cls, catalog: Catalog, directory: Directory) -> Self:
        return cls(
            dict(catalog.bases),
            dict(catalog.engines),
            dict(catalog.adapters),
            catalog.versions.copy(),
            dict(catalog.tombstones),
            dict(directory.tenants),
            dict(directory.keys),
        )


def read(registry: Snapshot, prices: Iterable[Price], selling: Selling | None = None) -> Current:
    """Objects by id, so that two exports differ only where the registries do."""
    selling = selling or Selling()
    adapters: dict[str, list[Version]] = {}
    retired = {}
    for version in registry.versions.values():
        if version.retired is None:
            adapters.setdefault(version.adapter, []).append(version)
        else:
            retired[version.id] = version.digest
    document = Document.model_construct(
        florin=1,
        bases={i: base_spec(b) for i, b in sorted(registry.bases.items())},
        engines={i: engine_spec(e) for i, e in sorted(registry.engines.items())},
        tenants={i: tenant_spec(t) for i, t in sorted(registry.tenants.items())},
        keys={i: key_spec(k) for i, k in sorted(registry.keys.items()) if k.role is not Role.ENROLMENT},
        adapters={i: adapter_spec(a, adapters.get(i, ())) for i, a in sorted(registry.adapters.items())},
        removed={
            i: RemovedSpec.model_construct(latest=f"v{t.latest}")
            for i, t in sorted(registry.tombstones.items())
            if i not in registry.adapters and t.latest
        },
        prices=tuple(price_spec(p) for p in sorted(prices, key=lambda p: (p.series, p.valid_from))),
        rate_cards=tuple(cards_in_force(selling.cards)),
        rate_card_assignments=tuple(assignments_in_force(selling.cards, registry.tenants)),
    )
    outcomes = {name: a.outcome for name, a in registry.adapters.items() if a.outcome is not None}
    return Current(document, retired, outcomes, selling)


def tenant_spec(tenant: Tenant) -> TenantSpec:
    return _same(TenantSpec, tenant, suspended=tenant.suspended is not None)


def key_spec(key: Key) -> KeySpec:
    return _same(
        KeySpec,
        key,
        role=key.role.value,
        pins=None if key.pins == Pins() else PinsSpec.model_construct(**asdict(key.pins)),
        secret=f"sha256:{key.digest}",
        expires=None if key.expires is None else iso(key.expires),
        revoked=None if key.revoked is None else iso(key.revoked),
        replaced_by=key.replaced_by or None,
    )


def _same(spec: type[S], document: object, **more: object) -> S:
    """`more`, and the fields that `document` has under the same names."""
    same = {name: getattr(document, name) for name in spec.model_fields if hasattr(document, name)} | more
    for name in _TERMS.keys() & same.keys():
        same[name] = _TERMS[name].model_construct(**asdict(same[name]))
    return spec.model_construct(**same)  # type: ignore[return-value]  # pydantic's plugin forgets S


def base_spec(base: BaseModel) -> BaseSpec:
    return _same(BaseSpec, base, aliases=tuple(sorted(base.aliases)))


def engine_spec(engine: Engine) -> EngineSpec:
    """Without what its process says of itself."""
    return _same(
        EngineSpec,
        engine,
        base=engine.base_model,
        state="active" if engine.rests else engine.state,
        seats=engine.seats or None,
        **({"slots": None, "cpu_slots": None, "max_rank": None} if engine.serves else {}),
        prompt_scores=engine.declared_scores or None,
    )


def adapter_spec(adapter: Adapter, versions: Iterable[Version]) -> AdapterSpec:
    """`versions`: those that may be called."""
    there = {v.number: v for v in versions}
    return _same(
        AdapterSpec,
        adapter,
        versions=tuple(version_spec(v) for _, v in sorted(there.items())),
        live=None if adapter.live is None else f"v{adapter.live}",
        canary=canary_spec(adapter),
        history=tuple(f"v{n}" for n in adapter.history if n in there),
        latest=f"v{adapter.latest}",
        shared_with=tuple(sorted(adapter.shared_with)),
    )


def canary_spec(adapter: Adapter) -> CanarySpec | None:
    if adapter.canary is None:
        return None
    guard = None if adapter.guard is None else GuardSpec.of(adapter.guard)
    return CanarySpec.model_construct(version=f"v{adapter.canary}", weight=adapter.weight, guard=guard)


def version_spec(version: Version) -> VersionSpec:
    return _same(VersionSpec, version, version=f"v{version.number}")


def price_spec(price: Price) -> NewPrice:
    fields = price.document()
    return NewPrice.model_construct(**{name: fields[name] for name in NewPrice.model_fields})


_TERMS: dict[str, type[StrictBody]] = {
    "limits": LimitTerms,
    "budget": BudgetTerms,
    "quotas": QuotaTerms,
    "policy": PolicyTerms,
    "scopes": ScopeTerms,
}


def _quiet_terms(spec: dict[str, Any]) -> None:
    """Leaves out what is not limited."""
    for name, terms in _TERMS.items():
        defaults = terms().model_dump(mode="json")
        changed = {k: v for k, v in spec.pop(name, {}).items() if v != defaults[k]}
        if changed:
            spec[name] = changed


_QUIET_PRICES: dict[str, Any] = {
    "per_request": "0.00",
    "free_input_tokens": 0,
    "free_cached_tokens": 0,
    "free_output_tokens": 0,
    "free_requests": 0,
    "tiers": [],
    "tier_mode": "graduated",
}
_QUIET: dict[str, dict[str, Any]] = {
    "engines": {
        "gpu_count": 1,
        "region": "",
        "purchase": "on_demand",
        "labels": {},
        "tenant": "",
        "host": "",
        "state": "active",
    },
    "tenants": {
        "requires": {},
        "weight": 1.0,
        "cache_group": "",
        "cost_centre": "",
        "prepaid": False,
        "suspended": False,
    },
    "keys": {"tenant": "", "engine": "", "label": "", "priority": "normal", "cost_centre": ""},
    "adapters": {
        "history": [],
        "pinned": False,
        "min_replicas": 0,
        "shared_with": [],
        "cost_centre": "",
        "require_eval": False,
        "eval_data": "",
    },
    "prices": {"purchase": "on_demand", "region": ""},
    "rate_cards": {
        **_QUIET_PRICES,
        "lines": [],
        "discount_percent": 0,
        "residency_per_adapter_hour": "0.00",
        "batch_percent": 100,
        "monthly_minimum": "0.00",
        "reason": "",
    },
}
"""What goes without saying, by section. An active engine is not said to be active, so that a file kept in
version control does not call back to work what an operator has drained since."""


def _quiet(spec: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for name, default in defaults.items():
        if spec.get(name) == default:
            del spec[name]


def export(current: Current) -> dict[str, Any]:
    """The document as JSON, without what goes without saying. Every section stands there, even empty."""
    document = current.document
    body = document.model_dump(mode="json", exclude_none=True, exclude={"adapters"})
    # One by one: no thread runs while pydantic dumps, which takes 0.2 s for 10,000.
    body["adapters"] = {
        name: spec.model_dump(mode="json", exclude_none=True)
        for name, spec in (document.adapters or {}).items()
    }
    for spec in (*body["tenants"].values(), *body["keys"].values()):
        _quiet_terms(spec)
    for section, defaults in _QUIET.items():
        objects = body[section]
        for spec in objects.values() if isinstance(objects, dict) else objects:
            _quiet(spec, defaults)
            for line in spec.get("lines", ()):
                _quiet(line, _QUIET_PRICES)
    for assignment in body["rate_card_assignments"]:  # null says something here
        for name in ("card", "tenant"):
            assignment.setdefault(name, None)
    for spec in body["adapters"].values():
        highest = spec["versions"][-1]["version"] if spec["versions"] else "v0"
        if spec["latest"] == highest:
            del spec["latest"]
        for version in spec["versions"]:
            for flag in ("trusted", "unverified_shapes"):
                if not version[flag]:
                    del version[flag]
    return body
