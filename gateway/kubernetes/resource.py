"""A resource as the API server has it, and the conditions in its status. Pure: times are passed in.

The conditions are those that kstatus knows, and with it `kubectl wait`, Flux and others: `Ready`; and, only
while they are true, `Reconciling` (wait) and `Stalled` (it takes somebody to look). `Synced` says whether the
registry is as the spec says: something may be synced and not ready, such as an adapter whose live version is
quarantined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Json = dict[str, Any]
Kind = Literal["Tenant", "LoraAdapter", "EnginePool"]
Key = tuple[Kind, str]
"""A resource's kind and name."""

GROUP: Final = "florin.internal"
"""A top-level domain that is set aside for private use, so nobody else's resources can have it."""
VERSION: Final = "v1alpha1"
PLURALS: Final[Mapping[Kind, str]] = {
    "Tenant": "tenants",
    "LoraAdapter": "loraadapters",
    "EnginePool": "enginepools",
}
FINALIZER: Final = f"{GROUP}/registry"
"""Keeps a deleted resource until what it stands for has left the registry."""
_LONGEST: Final = 1024
"""Characters of a condition's message. Kubernetes allows 32,768."""


@dataclass(frozen=True, slots=True)
class Resource:
    kind: Kind
    body: Json

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def metadata(self) -> Json:
        metadata: Json = self.body["metadata"]
        return metadata

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def generation(self) -> int:
        """Counts changes of the spec."""
        return int(self.metadata.get("generation", 0))

    @property
    def spec(self) -> Json:
        return self.body.get("spec") or {}

    @property
    def status(self) -> Json:
        return self.body.get("status") or {}

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.metadata

    @property
    def finalizers(self) -> list[str]:
        return list(self.metadata.get("finalizers") or ())

    @property
    def age(self) -> tuple[str, str]:
        """Orders resources, the oldest first."""
        return str(self.metadata.get("creationTimestamp", "")), str(self.metadata.get("uid", ""))

    @property
    def id(self) -> str:
        """What it stands for in the registry: a tenant's name, or an adapter's full name."""
        name = str(self.spec.get("name") or self.name)
        return f"{self.spec.get('tenant', '')}/{name}" if self.kind == "LoraAdapter" else name

    @property
    def synced(self) -> bool:
        """Whether the registry was as this spec says when it was last looked at."""
        current = self.status.get("observedGeneration") == self.generation
        return current and any(c["type"] == "Synced" and c["status"] == "True" for c in self.conditions)

    @property
    def conditions(self) -> list[Json]:
        return list(self.status.get("conditions") or ())

    def wants_a_look(self, before: Resource | None) -> bool:
        """Whether a change of it is more than one of its status."""
        return before is None or (self.generation, self.deleting, FINALIZER in self.finalizers) != (
            before.generation,
            before.deleting,
            FINALIZER in before.finalizers,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at a resource has shown."""

    reason: str
    """One word in CamelCase."""
    message: str
    phase: Literal["ready", "reconciling", "stalled"] = "ready"
    synced: bool = True


def conditions(old: Sequence[Json], finding: Finding, generation: int, now: str) -> list[Json]:
    """`now`: as Kubernetes writes times. A condition keeps the time of its last change."""
    statuses = {"Ready": finding.phase == "ready", "Synced": finding.synced}
    abnormal = {"reconciling": "Reconciling", "stalled": "Stalled"}.get(finding.phase)
    if abnormal is not None:
        statuses[abnormal] = True
    since = {(c["type"], c["status"]): c["lastTransitionTime"] for c in old}
    return [
        {
            "type": type_,
            "status": str(status),
            "reason": finding.reason,
            "message": finding.message[:_LONGEST],
            "observed_generation": generation,
            "last_transition_time": since.get((type_, str(status)), now),
        }
        for type_, status in statuses.items()
    ]


def pascal(code: str) -> str:
    """`rank_too_high` as a condition's reason: `RankTooHigh`."""
    return "".join(word.capitalize() for word in code.split("_")) or "Failed"
