"""What a file leaves out, and pruning removes: in the opposite of the order in which one needs the other."""

from __future__ import annotations

from typing import Any

from gateway.operations.declarative.actions import PlannedAction
from gateway.operations.declarative.document import Document
from gateway.operations.declarative.specs import AdapterSpec
from gateway.schemas.declarative import FieldChange, Kind

PRUNED = ("adapters", "keys", "tenants", "engines", "bases")
"""Prices, rate cards and the version numbers of removed adapters stay: costs are computed from them."""

Gone = dict[str, list[str]]
"""Section → ids of what is there and not in the file."""


def left_out(now: Document, wanted: Document) -> Gone:
    """Of the sections that the file has."""
    return {section: _extra(getattr(now, section), getattr(wanted, section)) for section in PRUNED}


def removals(now: Document, wanted: Document, gone: Gone, asking: str) -> list[PlannedAction | None]:
    """`asking`: see `plan`."""
    made: list[PlannedAction | None] = []
    for name in sorted((wanted.adapters or {}).keys() & (now.adapters or {}).keys()):
        made += _versions_gone(name, now, wanted)
    made += [_gone("adapter", i) for i in gone["adapters"]]
    for key in gone["keys"]:
        if now.keys and now.keys[key].revoked is None:
            made.append(_self(key) if key == asking else _gone("key", key))
    made += [_tenant_gone(i, now, wanted, gone) for i in gone["tenants"]]
    made += [_gone("engine", i) for i in gone["engines"]]
    used = {e.base for i, e in (now.engines or {}).items() if i not in gone["engines"]}
    used |= {e.base for e in (wanted.engines or {}).values()}
    for name, adapter in (now.adapters or {}).items():
        if name not in gone["adapters"]:
            used |= {v.base_model for v in adapter.versions if v.base_model}
    made += [_gone("base", i) for i in gone["bases"] if i not in used]
    return made


def _extra(now: dict[str, Any] | None, wanted: dict[str, Any] | None) -> list[str]:
    return [] if wanted is None else sorted((now or {}).keys() - wanted.keys())


def _gone(kind: Kind, id_: str) -> PlannedAction:
    return PlannedAction("remove", kind, id_)


def _self(key: str) -> PlannedAction:
    reason = "It is the key that asks for this, and would lock you out: list it, or use another."
    return PlannedAction("refuse", "key", key, reason=reason)


def _tenant_gone(name: str, now: Document, wanted: Document, gone: Gone) -> PlannedAction:
    """It goes with nothing left that needs it."""
    adapters = {i: a for i, a in (now.adapters or {}).items() if i not in gone["adapters"]}
    adapters |= wanted.adapters or {}
    keys = {i: k for i, k in (now.keys or {}).items() if i not in gone["keys"] and not k.revoked}
    keys |= wanted.keys or {}
    left = sorted(
        f"adapter {i}" for i, a in adapters.items() if i.startswith(f"{name}/") or name in a.shared_with
    )
    left += sorted(f"key {i}" for i, k in keys.items() if k.tenant == name)
    if left:
        return PlannedAction("refuse", "tenant", name, reason=f"It cannot go while there is {left[0]}.")
    return _gone("tenant", name)


def _versions_gone(name: str, now: Document, wanted: Document) -> list[PlannedAction | None]:
    """Versions that the file no longer lists, but for those that callers of the bare name get."""
    there, said = (now.adapters or {})[name], (wanted.adapters or {})[name]
    kept = {v.version for v in said.versions} | _called(said if said.live else there)
    extra = [v for v in there.versions if v.version not in kept]
    if not extra:
        return []
    fields = tuple(FieldChange(field=f"versions.{v.version}", old=v.source, new=None) for v in extra)
    goal = there.model_copy(update={"versions": tuple(extra)})
    return [PlannedAction("remove", "adapter", name, fields, goal, needs=frozenset({("adapter", name)}))]


def _called(adapter: AdapterSpec) -> set[str | None]:
    return {adapter.live, adapter.canary.version if adapter.canary else None}


def engines_moved(now: Document, wanted: Document, gone: Gone) -> list[PlannedAction]:
    """Engines that leave first, for another is registered at their URL."""
    urls = {e.url for e in (wanted.engines or {}).values()}
    return [_gone("engine", i) for i in gone["engines"] if (now.engines or {})[i].url in urls]
