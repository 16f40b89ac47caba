"""The objects of `fleet.yaml`: the fields of each, and what is checked of one by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from adapters.errors import InvalidNameError
from adapters.model import AdapterName, Purchase, check_name
from adapters.sources.public_uri import public
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.fleet.adapters.schemas.adapters import NewReplicas, VersionName
from gateway.fleet.engines.operations.checks import normal_url
from gateway.fleet.engines.schemas.engines import EngineState
from gateway.fleet.engines.schemas.registration import EngineLabels, EngineOptions, EngineTenant, OnlyVersion
from gateway.schemas.base import (
    Address,
    Count,
    GuardSpec,
    Label,
    StrictBody,
    as_json,
)
from gateway.tenants.directory import Role
from gateway.tenants.keys.schemas import KeyRole
from gateway.tenants.operations.terms import check_owner, check_terms
from gateway.tenants.schemas.terms import CostCentre, KeyTerms, TenantTerms

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


def _named(what: str) -> Callable[[str], str]:
    def check(name: str) -> str:
        try:
            return check_name(what, name)
        except InvalidNameError as error:
            raise ValueError(str(error)) from error

    return check


def _adapter_name(name: str) -> str:
    try:
        return str(AdapterName.parse(name))
    except InvalidNameError as error:
        raise ValueError(str(error)) from error


def _url(url: str) -> str:
    try:
        return normal_url(url)
    except FlorinError as error:
        raise ValueError(error.message) from error


def uploaded(source: str) -> bool:
    """Where the files came from is nowhere to be fetched from."""
    return source.partition(":")[0] == "upload"


def _public(source: str) -> str:
    if not uploaded(source) and public(source) != source:
        raise ValueError(
            "a source in a file must have no credentials and no query: put credentials into the gateway's "
            "environment"
        )
    return source


def _tenant_or_none(name: str) -> str:
    return _named("tenant")(name) if name else name


def _engine_or_none(name: str) -> str:
    return _named("engine")(name) if name else name


def _key_id(key_id: str) -> str:
    if key_id == "bootstrap":
        raise ValueError("bootstrap is the id of the key in FLORIN_OPERATOR_KEY; a file cannot define it")
    return key_id


TenantName = Annotated[str, AfterValidator(_named("tenant"))]
EngineName = Annotated[str, AfterValidator(_named("engine"))]
FullName = Annotated[str, AfterValidator(_adapter_name)]
KeyId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,63}$"), AfterValidator(_key_id)]


TenantSpec = TenantTerms


class PinsSpec(StrictBody):
    """See `gateway.tenants.directory.Pins`."""

    base: Label | None = Field(None, description="Its base model.")
    gpu_type: Label | None = Field(None, description="Its GPU type.")
    gpu_count: Count | None = Field(None, description="Its number of GPUs.")
    region: str | None = Field(None, max_length=63, pattern=r"^[ -~]*$", description="Its region.")
    purchase: Purchase | None = Field(None, description="Its purchase model.")
    labels: EngineLabels | None = Field(None, description="Its labels.")
    tenant: EngineTenant | None = Field(None, description="The tenant that it is dedicated to.")
    address: Address | None = Field(None, description="The host in its URL.")
    serves: OnlyVersion | None = Field(None, description="The only version that it serves; empty: any.")


class KeySpec(KeyTerms):
    tenant: Annotated[str, AfterValidator(_tenant_or_none)] = Field(
        "", description="Whose it is. Required for the roles tenant and tenant-admin."
    )
    role: KeyRole = Field("tenant", description="What it is for; see docs/access.md.")
    engine: Annotated[str, AfterValidator(_engine_or_none)] = Field(
        "", description="The one engine that a key of role engine is for."
    )
    pins: PinsSpec | None = Field(None, description="What that engine's host cannot change.")
    secret: Digest = Field(description="SHA-256 of the key's text. The text itself is never sent.")
    expires: str | None = Field(None, description="ISO 8601, UTC: from when on it is refused.")
    revoked: str | None = Field(None, description="ISO 8601, UTC: since when it is refused.")
    replaced_by: KeyId | None = Field(None, description="The key to which it was rotated.")

    @model_validator(mode="after")
    def _consistent(self) -> KeySpec:
        role = Role(self.role)
        check_owner(role, self.tenant, self.engine, pins=self.pins)
        _check_time("expires", self.expires)
        _check_time("revoked", self.revoked)
        check_terms(role, self)
        return self


class BaseSpec(StrictBody):
    aliases: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] | None = Field(
        None, description="Other names that adapters have for it."
    )
    config: Annotated[dict[str, Any], AfterValidator(as_json)] | None = Field(
        None, description="Its config.json, against which adapters are checked."
    )
    chat_template: str | None = Field(
        None,
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256, hex, of its chat template; empty: it has none.",
    )


class EngineSpec(EngineOptions):
    url: Annotated[str, Field(max_length=2000), AfterValidator(_url)] = Field(
        description="Where it is.", examples=["http://10.0.0.7:8000"]
    )
    state: EngineState | None = Field(None, description="Left out: as it is; active for a new one.")


class VersionSpec(StrictBody):
    version: VersionName = Field(description="Its number, never given twice.", examples=["v1"])
    source: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_public)] = Field(
        description="A directory that the gateway can read, or a URI without credentials: see "
        "docs/adapters.md.",
        examples=["s3://adapters/acme/support/1"],
    )
    digest: Digest | None = Field(None, description="SHA-256 of its files; they are refused if they differ.")
    base_model: Label | None = Field(None, description="The fleet, where several could be meant.")
    trusted: bool | None = Field(
        None, description="Released from quarantine: it is not compared with the base model again."
    )
    unverified_shapes: bool = Field(
        False, description="Vouch for its shapes if the base model's architecture is unknown."
    )

    @property
    def number(self) -> int:
        return int(self.version[1:])


class CanarySpec(StrictBody):
    version: VersionName = Field(description="One of the adapter's versions, not the live one.")
    weight: int = Field(ge=1, le=99, description="Percent of the calls.")
    guard: GuardSpec | None = Field(None, description="What watches it.")


class AdapterSpec(NewReplicas):
    versions: tuple[VersionSpec, ...] = Field(
        description="Those that can be called; the rest stay as they are."
    )
    live: VersionName | None = Field(
        None, description="What its bare name calls. Left out: as it is; the first one for a new adapter."
    )
    canary: CanarySpec | None = Field(None, description="Another version that gets part of the calls.")
    history: tuple[VersionName, ...] | None = Field(
        None, max_length=1000, description="What was live before, oldest first; for an adapter without one."
    )
    latest: VersionName | None = Field(
        None, description="The highest number ever given, if it is not listed."
    )
    pinned: bool = Field(False, description="Never evict its live and canary versions.")
    shared_with: tuple[TenantName, ...] = Field((), description="Other tenants that may call it.")
    cost_centre: CostCentre = Field("", description="Of its tenant's usage of it, where the key has none.")
    require_eval: bool = Field(False, description="Promote a version only if it has passed its evaluation.")
    eval_data: str = Field(
        "", pattern="^([0-9a-f]{64})?$", description="SHA-256 of the data of that evaluation; empty: any."
    )

    @model_validator(mode="after")
    def _consistent(self) -> AdapterSpec:
        listed = [v.version for v in self.versions]
        unique("version", listed)
        unique("digest", (f"{v.digest} for {v.base_model}" for v in self.versions if v.digest))
        unique("tenant in shared_with", self.shared_with)
        named = [("live", self.live), ("canary", self.canary.version if self.canary else None)]
        for what, version in named:
            if version is not None and version not in listed:
                raise ValueError(f"{what} is {version}, which is not one of its versions")
        if self.canary is not None and self.canary.version == self.live:
            raise ValueError(f"canary is {self.live}, which is live: it must be another version")
        if self.canary is not None and self.live is None:
            raise ValueError("a canary needs a live version")
        return self


class RemovedSpec(StrictBody):
    latest: VersionName = Field(description="The highest number it ever gave: none is given twice.")


def unique(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value[:120]} appears twice")
        seen.add(value)


def _check_time(field: str, value: str | None) -> None:
    if value is not None:
        try:
            instant(field, value)
        except PeriodError as error:
            raise ValueError(str(error)) from error
