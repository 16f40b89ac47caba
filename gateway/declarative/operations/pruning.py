"""What a file leaves out, and pruning removes: in the opposite of the order in which one needs the other."""

from __future__ import annotations

from typing import Any

from gateway.declarative.operations.actions import PlannedAction
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.specs import AdapterSpec
from gateway.declarative.schemas import FieldChange, Kind

PRUNED = ("adapters", "keys", "tenants", "engines", "bases")
"""Prices, rate cards and the version numbers of removed adapters stay: costs are computed from them."""

Gone = dict[str, list[str]]
"""Section → ids of what is there and not in the file."""


def left_out(now: Document, document: Document) -> Gone:
    """What is there and not in the file, for the sections that it has."""
    return {section: _extra(getattr(now, section), getattr(document, section)) for section in PRUNED}


def removals(now: Document, document: Document, gone: Gone, asking: str) -> list[PlannedAction | None]:
    """`asking`: see `plan`."""
    actions: list[PlannedAction | None] = []
    for name in sorted((document.adapters or {}).keys() & (now.adapters or {}).keys()):
        actions += _versions_gone(name, now, document)
    actions += [_gone("adapter", i) for i in gone["adapters"]]
    for key in gone["keys"]:
        if now.keys and now.keys[key].revoked is None:
            actions.append(_self(key) if key == asking else _gone("key", key))
    actions += [_tenant_gone(i, now, document, gone) for i in gone["tenants"]]
    actions += [_gone("engine", i) for i in gone["engines"]]
    used = {e.base for i, e in (now.engines or {}).items() if i not in gone["engines"]}
    used |= {e.base for e in (document.engines or {}).values()}
    for name, adapter in (now.adapters or {}).items():
        if name not in gone["adapters"]:
            used |= {v.base_model for v in adapter.versions if v.base_model}
    actions += [_gone("base", i) for i in gone["bases"] if i not in used]
    return actions


def _extra(now: dict[str, Any] | None, listed: dict[str, Any] | None) -> list[str]:
    return [] if listed is None else sorted((now or {}).keys() - listed.keys())


def _gone(kind: Kind, id_: str) -> PlannedAction:
    return PlannedAction("remove", kind, id_)


def _self(key: str) -> PlannedAction:
    reason = "It is the key that asks for this, and would lock you out: list it, or use another."
    return PlannedAction("refuse", "key", key, reason=reason)


def _tenant_gone(name: str, now: Document, document: Document, gone: Gone) -> PlannedAction:
    """It goes with nothing left that needs it."""
    adapters = {i: a for i, a in (now.adapters or {}).items() if i not in gone["adapters"]}
    adapters |= document.adapters or {}
    keys = {i: k for i, k in (now.keys or {}).items() if i not in gone["keys"] and not k.revoked}
    keys |= document.keys or {}
    left = sorted(
        f"adapter {i}" for i, a in adapters.items() if i.startswith(f"{name}/") or name in a.shared_with
    )
    left += sorted(f"key {i}" for i, k in keys.items() if k.tenant == name)
    if left:
        return PlannedAction("refuse", "tenant", name, reason=f"It cannot go while there is {left[0]}.")
    return _gone("tenant", name)


def _versions_gone(name: str, now: Document, document: Document) -> list[PlannedAction | None]:
    """Versions that the file no longer lists, but for those that callers of the bare name get."""
    there, listed = (now.adapters or {})[name], (document.adapters or {})[name]
    kept = {v.version for v in listed.versions} | _called(listed if listed.live else there)
    extra = [v for v in there.versions if v.version not in kept]
    if not extra:
        return []
    fields = tuple(FieldChange(field=f"versions.{v.version}", old=v.source, new=None) for v in extra)
    goal = there.model_copy(update={"versions": tuple(extra)})
    return [PlannedAction("remove", "adapter", name, fields, goal, needs=frozenset({("adapter", name)}))]


def _called(adapter: AdapterSpec) -> set[str | None]:
    return {adapter.live, adapter.canary.version if adapter.canary else None}


def engines_moved(now: Document, document: Document, gone: Gone) -> list[PlannedAction]:
    """Engines that leave first, for another is registered at their URL."""
    urls = {e.url for e in (document.engines or {}).values()}
    return [_gone("engine", i) for i in gone["engines"] if (now.engines or {})[i].url in urls]
