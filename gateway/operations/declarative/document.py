"""`fleet.yaml` as data: the whole registry in one document, and what is checked of it before anything is
planned.

A field that is left out has its default, with these exceptions, which stay as they are: an adapter's `live`
(and with it `canary`), `history` and `latest`, a version's `trusted`, an engine's `state`, a tenant's
`suspended`, and everything of a base model. A whole section that is left out is not this file's business:
nothing of it is added, changed or pruned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from adapters.errors import Finding, InvalidNameError
from adapters.model import AdapterName, DriverName, Purchase, check_name
from adapters.sources.public_uri import public
from gateway.costs.periods import PeriodError, instant
from gateway.errors import FlorinError
from gateway.operations.engine_checks import normal_url
from gateway.operations.inputs import (
    Address,
    Count,
    EngineLabels,
    GuardSpec,
    HeldVersions,
    HostName,
    Label,
    NewPrice,
    Replicas,
    StrictBody,
    Tasks,
    as_json,
    check_replicas,
    mistaken_kind,
)
from gateway.operations.rate_cards import NewAssignment, NewRateCard
from gateway.operations.terms import CostCentre, KeyTerms, TenantTerms, check_terms
from gateway.tenants.directory import TENANT_ROLES, Role

SHOWN_ERRORS = 50
_WORD = re.compile(r"[\w/@.+-]+", re.ASCII)

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]
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
            "a source in a file has no credentials and no query: the gateway's environment has them"
        )
    return source


def _tenant_or_none(name: str) -> str:
    return _named("tenant")(name) if name else name


def _engine_or_none(name: str) -> str:
    return _named("engine")(name) if name else name


def _key_id(key_id: str) -> str:
    if key_id == "bootstrap":
        raise ValueError("bootstrap is the key of FLORIN_OPERATOR_KEY, which no file gives")
    return key_id


TenantName = Annotated[str, AfterValidator(_named("tenant"))]
EngineName = Annotated[str, AfterValidator(_named("engine"))]
FullName = Annotated[str, AfterValidator(_adapter_name)]
KeyId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,63}$"), AfterValidator(_key_id)]


TenantSpec = TenantTerms


class PinsSpec(StrictBody):
    """See `gateway.tenants.directory.Pins`."""

    base: Label | None = None
    gpu_type: Label | None = None
    gpu_count: Count | None = None
    region: str | None = Field(None, max_length=63, pattern=r"^[ -~]*$")
    purchase: Purchase | None = None
    labels: EngineLabels | None = None
    address: Address | None = None


class KeySpec(KeyTerms):
    tenant: Annotated[str, AfterValidator(_tenant_or_none)] = ""
    role: Role = Role.TENANT
    engine: Annotated[str, AfterValidator(_engine_or_none)] = Field(
        "", description="The one engine that a key of role engine is for."
    )
    pins: PinsSpec | None = Field(None, description="What the host of that engine may not say otherwise.")
    secret: Digest = Field(description="SHA-256 of the key's text. The text itself is never sent.")
    expires: str | None = Field(None, description="ISO 8601, UTC: from when on it is refused.")
    revoked: str | None = Field(None, description="ISO 8601, UTC: since when it is refused.")
    replaced_by: KeyId | None = Field(None, description="The key to which it was rotated.")

    @model_validator(mode="after")
    def _whose(self) -> KeySpec:
        if self.role in TENANT_ROLES and not self.tenant:
            raise ValueError(f"a key of role {self.role} needs a tenant")
        if self.role is Role.ENROLMENT:
            raise ValueError("enrolment tokens are made by `florin engine token create`, and live in no file")
        if (self.role is Role.ENGINE) != bool(self.engine):
            raise ValueError("a key of role engine, and no other, has an engine")
        if self.pins is not None and not self.engine:
            raise ValueError("only keys of role engine have pins")
        if self.tenant and self.role in {Role.ENGINE, Role.METRICS}:
            raise ValueError(f"a key of role {self.role} is no tenant's")
        _check_time("expires", self.expires)
        _check_time("revoked", self.revoked)
        check_terms(self.role, self)
        return self


class BaseSpec(StrictBody):
    aliases: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] | None = None
    config: Annotated[dict[str, Any], AfterValidator(as_json)] | None = Field(
        None, description="Its config.json."
    )
    chat_template: str | None = Field(
        None,
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256, hex, of its chat template; empty: it has none.",
    )


class EngineSpec(StrictBody):
    url: Annotated[str, Field(max_length=2000), AfterValidator(_url)]
    base: Label
    gpu_type: Label
    gpu_count: Count = 1
    slots: Count
    cpu_slots: Count | None = Field(None, description="As many as `slots` if left out.")
    max_rank: Count
    seats: Count | None = Field(None, description="Learned from its metrics if left out.")
    tasks: Tasks = ("generate",)
    driver: DriverName = "vllm"
    holds: HeldVersions = ()
    region: str = Field("", max_length=63, pattern=r"^[ -~]*$")
    purchase: Purchase = "on_demand"
    labels: EngineLabels = Field(default_factory=dict)
    host: HostName = Field("", description="Failure domain; empty: the host of its URL.")
    state: Literal["active", "cordoned", "draining"] | None = None

    @model_validator(mode="after")
    def _enough(self) -> EngineSpec:
        if self.cpu_slots is not None and self.cpu_slots < self.slots:
            raise ValueError(f"cpu_slots is {self.cpu_slots}, but must be at least slots ({self.slots})")
        _, why = mistaken_kind(self.driver, self.tasks, self.holds)
        if why:
            raise ValueError(why)
        return self


class VersionSpec(StrictBody):
    version: VersionName
    source: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_public)]
    digest: Digest | None = None
    base_model: Label | None = Field(None, description="The fleet, where several could be meant.")
    trusted: bool | None = None
    unverified_shapes: bool = Field(
        False, description="Vouch for its shapes if the base model's architecture is unknown."
    )

    @property
    def number(self) -> int:
        return int(self.version[1:])


class CanarySpec(StrictBody):
    version: VersionName
    weight: int = Field(ge=1, le=99, description="Percent of the calls.")
    guard: GuardSpec | None = Field(None, description="What watches it.")


class AdapterSpec(StrictBody):
    versions: tuple[VersionSpec, ...]
    live: VersionName | None = None
    canary: CanarySpec | None = None
    history: tuple[VersionName, ...] | None = Field(
        None, max_length=1000, description="What was live before, oldest first; for an adapter without one."
    )
    latest: VersionName | None = Field(
        None, description="The highest number ever given, if it is not listed."
    )
    pinned: bool = False
    min_replicas: Replicas = 0
    max_replicas: Replicas | None = None
    shared_with: tuple[TenantName, ...] = ()
    cost_centre: CostCentre = Field("", description="Of its tenant's usage of it, where the key has none.")
    require_eval: bool = Field(False, description="Promote a version only if it has passed its evaluation.")
    eval_data: str = Field(
        "", pattern="^([0-9a-f]{64})?$", description="SHA-256 of the data of that evaluation; empty: any."
    )

    @model_validator(mode="after")
    def _consistent(self) -> AdapterSpec:
        listed = [v.version for v in self.versions]
        check_replicas(self.min_replicas, self.max_replicas)
        _unique("version", listed)
        _unique("digest", (f"{v.digest} for {v.base_model}" for v in self.versions if v.digest))
        _unique("tenant in shared_with", self.shared_with)
        named = [("live", self.live), ("canary", self.canary.version if self.canary else None)]
        for what, version in named:
            if version is not None and version not in listed:
                raise ValueError(f"{what} is {version}, which is not among versions")
        if self.canary is not None and self.canary.version == self.live:
            raise ValueError(f"canary is {self.live}, which is live: it must be another version")
        if self.canary is not None and self.live is None:
            raise ValueError("a canary needs live beside it")
        return self


class RemovedSpec(StrictBody):
    latest: VersionName = Field(description="The highest number it ever gave: none is given twice.")


_DECIMALS = {
    *("rate_per_gpu_hour", "speedup", "input_per_million", "cached_per_million", "output_per_million"),
    *("residency_per_adapter_hour", "monthly_minimum"),
}


def _decimals(said: object) -> object:
    """Prices are decimals, written as text; a person writes 2.50 in a file, which YAML takes for a number."""
    if not isinstance(said, dict):
        return said
    return {
        name: str(value) if name in _DECIMALS and type(value) in {int, float} else value
        for name, value in said.items()
    }


class Document(StrictBody):
    """Ids → objects, by noun."""

    florin: Literal[1] = Field(description="Version of this format.")
    bases: dict[Label, BaseSpec] | None = None
    engines: dict[EngineName, EngineSpec] | None = None
    tenants: dict[TenantName, TenantSpec] | None = None
    keys: dict[KeyId, KeySpec] | None = None
    adapters: dict[FullName, AdapterSpec] | None = None
    removed: dict[FullName, RemovedSpec] | None = None
    prices: tuple[Annotated[NewPrice, BeforeValidator(_decimals)], ...] | None = None
    rate_cards: tuple[Annotated[NewRateCard, BeforeValidator(_decimals)], ...] | None = None
    rate_card_assignments: tuple[NewAssignment, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Document:
        _unique("url of an engine", (e.url for e in (self.engines or {}).values()))
        _unique("secret of a key", (k.secret for k in (self.keys or {}).values()))
        _check_prices(self.prices or ())
        _unique("version of a rate card", (f"{c.name} from {c.valid_from}" for c in self.rate_cards or ()))
        _unique(
            "assignment of a rate card",
            (f"{a.tenant} from {a.valid_from}" for a in self.rate_card_assignments or ()),
        )
        both = sorted((self.adapters or {}).keys() & (self.removed or {}).keys())
        if both:
            raise ValueError(f"{both[0]} is among adapters and among removed")
        return self


def parse(body: object) -> Document:
    """Raises FlorinError, whose findings name each wrong place by its path in the file."""
    try:
        return Document.model_validate(body)
    except ValidationError as error:
        findings = tuple(_finding(e) for e in error.errors()[:SHOWN_ERRORS])
    first, more = findings[0], len(findings) - 1
    message = first.message + (f" (and {more} more)" if more else "")
    raise FlorinError("invalid_value", message, param=first.message.partition(": ")[0], findings=findings)


def path(where: Sequence[str | int]) -> str:
    """`adapters.acme/support.versions[1].source`"""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if part == "[key]":
            continue  # the id itself is wrong
        shown = part if _WORD.fullmatch(part) else ascii(part[:80])
        text += f".{shown}" if text else shown
    return text or "the document"


def _finding(error: Any) -> Finding:
    where = path(error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    secret = error["loc"][:1] == ("keys",)  # what stands there may be a key, written by mistake
    found = "-" if secret or isinstance(error["input"], dict | list) else ascii(error["input"])[:120]
    return Finding("invalid_value", f"{where}: {message.rstrip('.')}.", found, str(_expected(error)))


def _expected(error: Any) -> str:
    context = error.get("ctx") or {}
    return next((str(context[k]) for k in ("expected", "pattern", "ge", "le") if k in context), "-")


def _unique(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value[:120]} stands there twice")
        seen.add(value)


def _check_prices(prices: Sequence[NewPrice]) -> None:
    """A price without a beginning applies from now on, so there can be only one."""
    series = [(p.gpu_type, p.region, p.purchase) for p in prices]
    for price, key in zip(prices, series, strict=True):
        if price.valid_from is None and series.count(key) > 1:
            shown = " ".join(part for part in key if part)
            raise ValueError(f"prices of {shown}: among several, each needs its valid_from")


def _check_time(field: str, value: str | None) -> None:
    if value is not None:
        try:
            instant(field, value)
        except PeriodError as error:
            raise ValueError(str(error)) from error
