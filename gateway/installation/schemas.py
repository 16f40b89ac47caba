"""The installation: whether it serves, its gateways, settings and registry, and what is wrong with it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody


class Liveness(Answer):
    status: Literal["ok"]


class Serving(Answer):
    status: Literal["ok", "unavailable"]


class Readiness(Answer):
    status: Literal["ok", "degraded", "unavailable"]
    redis: bool = Field(description="The worker is connected to Redis.")
    conditions: tuple[str, ...] = Field(description="Codes of what is wrong: see the page Conditions.")


class Release(Answer):
    version: str


class WorkerDeath(Answer):
    died_at: int = Field(description="Unix microseconds, UTC.")
    code: int = Field(description="The worker's exit code.")


class Gateway(Answer):
    """A running gateway. Times are Unix microseconds, UTC. One that was killed is listed for up to 15
    seconds."""

    name: str
    announced_at: int = Field(description="When it last announced itself.")
    started: int
    serving: bool = Field(description="false: it is starting, and may be refused.")
    version: str = Field(description="Empty: unknown.")
    commit: str = Field(description="Empty: unknown.")
    workers: int
    ledger: str = Field(
        description="Identity of its ledger: gateways that share one have the same. Empty: not known yet."
    )
    ledger_url: str
    redis_url: str
    restarts: int = Field(description="Workers that have died since its start.")
    deaths: tuple[WorkerDeath, ...] = Field(description="Those of the last hour.")


class Diagnosis(Answer):
    check: str
    status: Literal["ok", "warning", "problem"]
    subject: str = Field(description="The engine, version, … concerned; empty: the installation.")
    message: str
    remedy: str


class Ids(Answer):
    count: int
    first: tuple[str, ...] = Field(description="At most ten of them.")


class RegistryDifference(Answer):
    """Ids of one kind of object. What there is none of is left out."""

    missing: Ids | None = Field(None, description="Known here, but not in Redis.")
    changed: Ids | None = None
    added: Ids | None = Field(None, description="In Redis, but not known here.")


class Registry(Answer):
    """What this gateway knows of the registry, compared with Redis."""

    status: Literal["ok", "regressed"]
    reason: str = Field(description="Why Redis must have lost a part of it; empty: it has not.")
    installation: str
    known: dict[str, int] = Field(description="Objects of each kind that this gateway knows.")
    left: dict[str, int] = Field(description="Objects of each kind in Redis.")
    differences: dict[str, RegistryDifference] = Field(
        description="By kind. `rewrite` brings back `missing` and `changed` objects and drops `added` ones."
    )
    found: str = Field(description="Identifies the state of Redis, for the decision.")


class RegistryDecision(StrictBody):
    found: str = Field(
        max_length=256,
        description="`found` from the comparison. 409 if the registry in Redis has changed since.",
    )


class Setting(Answer):
    name: str = Field(examples=["FLORIN_PORT"])
    group: str
    value: Any = Field(description="null for a secret.")
    set: bool
    default: Any = Field(description="null for a secret.")
    secret: bool
    source: Literal["default", "environment", "florin.yaml"]
    reloadable: bool = Field(description="SIGHUP reloads it.")
    description: str


class Certificate(Answer):
    name: str
    expires: int = Field(description="Unix microseconds, UTC.")
    trouble: str = Field(description="Why its last renewal failed; empty: it did not.")


class Settings(Answer):
    """What the gateway that answers works with."""

    data: tuple[Setting, ...]
    certificates: tuple[Certificate, ...] = Field(
        description="Those of its TLS listener and for its engines."
    )
    versions: dict[str, str] = Field(description="Of Florin and its libraries.")
