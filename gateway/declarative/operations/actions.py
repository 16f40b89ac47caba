"""What a plan consists of: actions, each on one object, with the fields that differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from gateway.costs.selling.schemas import NewAssignment
from gateway.declarative.operations.specs import AdapterSpec, EngineSpec, KeySpec, VersionSpec
from gateway.declarative.schemas import FieldChange, Kind, PlanCounts, Verb
from gateway.schemas.base import json_of

Ref = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class PlannedAction:
    verb: Verb
    kind: Kind
    id: str
    fields: tuple[FieldChange, ...] = ()
    goal: BaseModel | None = None
    """The object as it is to be, complete; None: gone, or refused."""
    reason: str = ""
    """Why it is refused."""
    code: str = "conflict"
    """The error's code."""
    needs: frozenset[Ref] = frozenset()
    """What must not have failed before."""

    @property
    def ref(self) -> Ref:
        return self.kind, self.id


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    actions: tuple[PlannedAction, ...]
    unchanged: int
    """Objects that are as the file says."""

    @property
    def digest(self) -> str:
        """The same for the same plan: whoever agreed to it agreed to no other."""
        actions = [(a.verb, a.kind, a.id, a.fields, a.reason) for a in self.actions]
        return hashlib.sha256(json_of(actions)).hexdigest()

    def counts(self) -> PlanCounts:
        verbs = Counter(action.verb for action in self.actions)
        return PlanCounts(
            create=verbs["create"],
            change=verbs["change"],
            remove=verbs["remove"],
            refuse=verbs["refuse"],
            unchanged=self.unchanged,
        )


def compare(kind: Kind, id_: str, old: BaseModel | None, new: BaseModel) -> PlannedAction | None:
    """None: nothing differs."""
    before, after = _facts(old) if old else {}, _facts(new)
    names = dict.fromkeys((*after, *before))
    fields = tuple(
        FieldChange(field=name, old=before.get(name), new=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )
    if old is not None and not fields:
        return None
    return PlannedAction("change" if old else "create", kind, id_, fields, new, needs=_needs(id_, new))


_TERMS = {"limits", "budget", "quotas", "policy", "scopes"}
_UNSAID = {
    "weight": 1.0,
    "cache_group": "",
    "cost_centre": "",
    "prepaid": False,
    "suspended": False,
    "priority": "normal",
    "label": "",
    "require_eval": False,
    "eval_data": "",
    "reason": "",
    "per_request": "0.00",
    "free_requests": 0,
    "tier_mode": "graduated",
    "discount_percent": 0,
}
"""What is not worth a line."""


def _facts(spec: BaseModel) -> dict[str, Any]:
    """What is shown of an object, a value a field: nested objects by dotted names, digests in full."""
    facts: dict[str, Any] = {}
    for name, value in spec.model_dump(mode="json").items():
        if value is None or value in ([], {}) or value == _UNSAID.get(name):
            continue
        if name == "versions":
            for version, listed in zip(value, getattr(spec, name), strict=True):
                facts |= _version_facts(version["version"], listed)
        elif name == "canary":
            facts[name] = f"{value['version']} at {value['weight']} %"
            facts |= {f"canary.guard.{field}": v for field, v in (value["guard"] or {}).items()}
        elif name in _TERMS:
            terms = getattr(spec, name).model_dump(mode="json", exclude_defaults=True)
            facts |= {f"{name}.{field}": v for field, v in terms.items()}
        elif isinstance(value, dict):
            facts |= {f"{name}.{field}": v for field, v in value.items() if v is not None}
        else:
            facts[name] = value
    return facts


def _version_facts(label: str, version: VersionSpec) -> dict[str, Any]:
    facts: dict[str, Any] = {f"versions.{label}": version.source}
    if version.digest is not None:
        facts[f"versions.{label}.digest"] = version.digest
    if version.base_model is not None:
        facts[f"versions.{label}.base_model"] = version.base_model
    if version.trusted:
        facts[f"versions.{label}.trusted"] = True
    return facts


def _needs(id_: str, goal: BaseModel) -> frozenset[Ref]:
    refs: set[Ref] = set()
    if isinstance(goal, KeySpec) and goal.tenant:
        refs.add(("tenant", goal.tenant))
    if isinstance(goal, NewAssignment) and goal.tenant:
        refs.add(("tenant", goal.tenant))
    if isinstance(goal, AdapterSpec):
        refs |= {("tenant", t) for t in (id_.partition("/")[0], *goal.shared_with)}
        refs |= {("base", v.base_model) for v in goal.versions if v.base_model is not None}
    if isinstance(goal, EngineSpec):
        refs.add(("base", goal.base))
    return frozenset(refs)
