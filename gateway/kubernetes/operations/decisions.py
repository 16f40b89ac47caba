"""What to do about a resource: pure. The controller acts on it.

A resource and what the gateway says of it lead to one step. Each step brings the resource nearer to rest and
is safe to do twice, so it does not matter how often it is decided, or whether two controllers do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.declarative.operations.document import read
from gateway.declarative.schemas import Action
from gateway.kubernetes.operations.definitions import DEFINITIONS, entry
from gateway.kubernetes.resource import FINALIZER, Finding, Json, Kind, Resource, pascal

_FEW = 5
"""Differences that a message names."""
_FOLLOWING = frozenset({"history", "latest"})
"""Fields that change because another one does."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Add the finalizer, before anything is put into the registry."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove it from the registry, then the finalizer."""


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the finalizer."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Change the registry."""

    drift: tuple[str, ...]
    """What somebody else has changed; empty: the spec is new."""


@dataclass(frozen=True, slots=True)
class Show:
    """Say in the status what was found."""

    finding: Finding
    drift: tuple[str, ...] = ()
    """What differs and stays so."""
    retry: bool = False
    """Look again soon, and less often each time."""


Step = Claim | Remove | Release | Apply | Show | None
"""None: nothing is to be done."""


def document(resources: Iterable[Resource]) -> Json:
    """A fleet file of them."""
    sections: dict[str, Json] = {}
    for resource in resources:
        section = DEFINITIONS[resource.kind].section
        sections.setdefault(section, {})[resource.id] = entry(resource)
    return {"florin": 1, **sections}


def owners(resources: Collection[Resource]) -> dict[tuple[Kind, str], Resource]:
    """Who has each object: the oldest of the resources that stand for it, and one that is being deleted only
    if there is no other. So the object outlives it where another asks for it."""
    by_object: dict[tuple[Kind, str], Resource] = {}
    for resource in sorted(resources, key=lambda r: (r.deleting, r.age)):
        by_object.setdefault((resource.kind, resource.id), resource)
    return by_object


def before_asking(resource: Resource, owner: Resource) -> Step:
    """What can be decided without the gateway. None: it has to be asked what it would change."""
    management = resource.spec.get("management", "Full")
    if resource.deleting:
        if FINALIZER not in resource.finalizers:
            return Show(Finding("Deleting", "Others' finalizers keep it.", "reconciling", synced=False))
        return Remove() if management == "Full" and owner.key == resource.key else Release()
    if owner.key != resource.key:
        message = (
            f"{resource.kind} {owner.name} is older, and stands for {resource.id}, too: delete one of them."
        )
        return Show(Finding("Duplicate", message, "stalled", synced=False))
    _, mistakes = read(document([resource]))
    if mistakes:
        message = " ".join(mistake.finding.message for mistake in mistakes[:_FEW])
        return Show(Finding("InvalidSpec", message, "stalled", synced=False))
    if management != "Observe" and FINALIZER not in resource.finalizers:
        return Claim()
    return None


def after_asking(resource: Resource, actions: Sequence[Action], served: Finding) -> Step:
    """`actions`: what the gateway would change. `served`: what it says of the object as it is."""
    refused = next((action for action in actions if action.action == "refuse"), None)
    if refused is not None:
        return Show(refusal(refused), retry=True)
    changes = tuple(change for action in actions for change in differences(action))
    if not actions:
        return Show(served, retry=served.phase == "stalled" or not served.synced)
    if resource.spec.get("management") == "Observe":
        message = f"The registry differs: {'; '.join(changes[:_FEW])}."
        return Show(Finding("Drifted", message, "stalled", synced=False), drift=changes)
    return Apply(changes if resource.synced else ())


def refusal(action: Action) -> Finding:
    """Why an action failed. What is only skipped waits for something else."""
    if action.error is None:
        return Finding("Failed", action.reason or "The gateway refuses it.", "stalled", synced=False)
    findings = [finding.message for finding in action.error.findings[:_FEW]]
    message = action.error.message if len(findings) < 2 else " ".join((action.error.message, *findings))
    code = action.error.findings[0].code if action.error.findings else action.error.code
    waits = action.outcome == "skipped" or action.error.type == "server_error"
    return Finding(pascal(code), message, "reconciling" if waits else "stalled", synced=False)


def differences(action: Action) -> list[str]:
    """`live: v2 → v1`, from what is there to what the spec says."""
    if not action.fields:
        return [f"{action.kind} {action.id}: missing"]
    changes = [f for f in action.fields if f.field not in _FOLLOWING] or action.fields
    return [f"{f.field}: {_text(f.old)} → {_text(f.new)}" for f in changes]


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)[:80]


def by_object(actions: Iterable[Action]) -> Mapping[tuple[str, str], list[Action]]:
    """By the kind of resource and the id."""
    kinds: dict[str, Kind] = {"tenant": "Tenant", "adapter": "LoraAdapter"}
    grouped: dict[tuple[str, str], list[Action]] = {}
    for action in actions:
        grouped.setdefault((kinds.get(action.kind, action.kind), action.id), []).append(action)
    return grouped
