"""The resources: what is asked for (`spec`, from the models of a fleet file), what is shown (`status`), and
the CustomResourceDefinitions of both, which the chart has as a file.

A resource that is left out of these models cannot be misspelt there: each field is defined once, by the fleet
file's own models, and described in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel

from gateway.declarative.operations.specs import AdapterSpec, TenantSpec
from gateway.fleet.engines.schemas.registration import EngineLabels
from gateway.kubernetes.operations.structural_schema import camel, snake, structural
from gateway.kubernetes.resource import GROUP, PLURALS, VERSION, Json, Kind, Resource
from gateway.schemas.base import Count, Label

_NAME: Final = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"


class Managed(BaseModel):
    """What a resource has besides the fields of a fleet file."""

    name: str | None = Field(
        None, pattern=_NAME, description="Its name in Florin. Left out: the resource's own. It never changes."
    )
    management: Literal["Full", "Retain", "Observe"] = Field(
        "Full",
        description="`Full`: what differs is changed, and it is removed with the resource. `Retain`: it "
        "stays when the resource is deleted. `Observe`: nothing is changed; the status shows what differs.",
    )


class TenantResource(TenantSpec, Managed):
    """A customer."""


class AdapterResource(AdapterSpec, Managed):
    """An adapter with its versions."""

    tenant: str = Field(pattern=_NAME, description="Whose it is. It never changes.")


class PoolResource(BaseModel):
    """Engines that belong together: those that have all that is given here."""

    names: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Pattern of their names; `*` matches any part. `florin-h100-*`: those of a StatefulSet.",
    )
    base: Label | None = Field(None, description="Their base model.")
    gpu_type: Label | None = Field(None, description="Their GPU type.")
    labels: EngineLabels | None = Field(None, description="Labels that they have.")
    min_ready: Count = Field(1, description="The pool is ready when so many of them can take requests.")


class Condition(BaseModel):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(description="One word.")
    message: str
    observed_generation: int
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})


class Drift(BaseModel):
    """What differed from the spec though the spec had not changed."""

    time: str = Field(json_schema_extra={"format": "date-time"})
    changes: list[str] = Field(description="Field, what it was, and what the spec says.")
    corrected: bool = Field(description="Whether it was changed back.")


class Status(BaseModel):
    observed_generation: int = Field(description="The generation that the rest is about.")
    conditions: list[Condition] = Field(
        description="Ready, Synced, and while they are true Reconciling, Stalled."
    )
    state: str = Field(description="One word for a table.")


class RegistryStatus(Status):
    id: str = Field(description="Its name in the registry.")
    drift: Drift | None = Field(description="The last time that somebody else had changed it.")


class AdapterStatus(RegistryStatus):
    live: str | None = Field(description="The version that its bare name calls.")
    canary: str | None = Field(description="The version that gets part of the calls, and its share.")
    base_model: str | None = Field(description="Of the live version.")
    engines: int = Field(description="Engines that hold the live version.")


class TenantStatus(RegistryStatus):
    adapters: int = Field(description="Adapters that it has.")


class Member(BaseModel):
    name: str
    state: str = Field(description="active, cordoned, draining or stopping.")
    health: str


class PoolStatus(Status):
    engines: int = Field(description="Registered engines.")
    ready: int = Field(description="Those that can take requests.")
    slots: int = Field(description="Slots of those.")
    members: list[Member]


Column = tuple[str, str, str]
"""Title, type, and path in the resource."""
_REASON: Final[Sequence[Column]] = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason'),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_WIDE: Final = {
    "name": "Message",
    "type": "string",
    "jsonPath": '.status.conditions[?(@.type=="Ready")].message',
    "priority": 1,
}
_KEPT_NAME: Final = {
    "rule": "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
    "message": "name never changes: delete the resource, and create another",
}
_KEPT_TENANT: Final = {
    "rule": "self.tenant == oldSelf.tenant",
    "message": "tenant never changes: delete the resource, and create another",
}


@dataclass(frozen=True, slots=True)
class Definition:
    spec: type[BaseModel]
    status: type[Status]
    short: str
    columns: Sequence[Column]
    rules: Sequence[Mapping[str, str]] = ()
    """What the API server checks of a spec, in CEL."""
    section: str = ""
    """The fleet file's; empty: it only looks."""


DEFINITIONS: Final[Mapping[Kind, Definition]] = {
    "Tenant": Definition(
        TenantResource,
        TenantStatus,
        "ften",
        (("State", "string", ".status.state"), ("Adapters", "integer", ".status.adapters"), *_REASON),
        (_KEPT_NAME,),
        "tenants",
    ),
    "LoraAdapter": Definition(
        AdapterResource,
        AdapterStatus,
        "lora",
        (
            ("Adapter", "string", ".status.id"),
            ("Version", "string", ".status.live"),
            ("State", "string", ".status.state"),
            ("Engines", "integer", ".status.engines"),
            *_REASON,
        ),
        (_KEPT_NAME, _KEPT_TENANT),
        "adapters",
    ),
    "EnginePool": Definition(
        PoolResource,
        PoolStatus,
        "epool",
        (
            ("State", "string", ".status.state"),
            ("Engines", "integer", ".status.engines"),
            ("Serving", "integer", ".status.ready"),
            ("Slots", "integer", ".status.slots"),
            *_REASON,
        ),
    ),
}


@cache
def _spec_schema(kind: Kind) -> Json:
    return structural(DEFINITIONS[kind].spec)


def entry(resource: Resource) -> Json:
    """What a fleet file would say of it."""
    own = Managed.model_fields.keys() | {"tenant"}
    fields: Json = snake(resource.spec, _spec_schema(resource.kind))
    return {name: value for name, value in fields.items() if name not in own}


def pool(resource: Resource) -> PoolResource:
    """Raises pydantic.ValidationError."""
    return PoolResource.model_validate(snake(resource.spec, _spec_schema("EnginePool")))


def shown(status: Status) -> Json:
    """As the API server takes it. A field that is null is removed there."""
    return {to_camel(name): _shown(value) for name, value in status.model_dump(mode="json").items()}


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {to_camel(name): _shown(inner) for name, inner in value.items()}
    return value


def definition(kind: Kind) -> Json:
    """Its CustomResourceDefinition."""
    of_kind, plural = DEFINITIONS[kind], PLURALS[kind]
    spec = camel(_spec_schema(kind))
    if of_kind.rules:
        spec["x-kubernetes-validations"] = [dict(rule) for rule in of_kind.rules]
    status = camel(structural(of_kind.status))
    # Until the controller has looked, it has observed nothing: else kstatus takes a new one for finished.
    status = {"type": "object", "default": {"observedGeneration": -1}, "properties": status["properties"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            # Whoever removes the chart does not mean to remove every adapter.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [of_kind.short],
                "categories": ["florin"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        *(
                            {"name": name, "type": type_, "jsonPath": path}
                            for name, type_, path in of_kind.columns
                        ),
                        _WIDE,
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": spec.pop("description", ""),
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": status,
                            },
                        }
                    },
                }
            ],
        },
    }


def manifest() -> str:
    """All of them, as the chart's file."""
    head = (
        "# Written by `python -m deploy.kubernetes.validate` from the models of fleet files: do not edit.\n"
    )
    return head + yaml.safe_dump_all(map(definition, DEFINITIONS), sort_keys=False, width=110)
