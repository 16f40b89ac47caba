"""The terms of tenants and keys as operators write them: in API bodies, and in fleet files.

In a body, a field that is left out stays as it is, and null restores its default: for a limit, none.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, replace
from decimal import Decimal
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints

from adapters.errors import InvalidNameError
from adapters.model import check_name
from gateway.costs.periods import LAST_HOUR, PeriodError, instant
from gateway.dataplane.labels import storable
from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import FlorinError
from gateway.fields.media import media_hosts
from gateway.fields.tables import check_passed
from gateway.schemas.base import Labels, StrictBody
from gateway.tenants.directory import TENANT_ROLES, Role
from gateway.tenants.terms import Priority

T = TypeVar("T")

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,6})([smhd])", re.ASCII)
_NAME_SPACE = re.compile(r"(?:[a-z0-9_*-]{1,63}/)?[a-z0-9_*-]{1,63}", re.ASCII)


def _exact_money(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give an amount such as 250 or 99.50")  # noqa: TRY004 - pydantic's convention
    return value


def _plain(value: Decimal) -> Decimal:
    """Without trailing zeros or an exponent, so that equal amounts are written the same way."""
    return Decimal(format(value.normalize(), "f"))


def _group(name: str) -> str:
    try:
        return check_name("cache group", name) if name else name
    except InvalidNameError as error:
        raise ValueError(str(error)) from error


def _printable(label: str) -> str:
    if not label.isprintable() or label != label.strip():
        raise ValueError("use printable characters, without spaces at the ends")
    return label


def _label(label: str) -> str:
    if label and not storable(label):
        raise ValueError("use at most 64 printable characters, and not `__other__`")
    return _printable(label)


def _scope(pattern: str) -> str:
    if _NAME_SPACE.fullmatch(pattern) is None:
        raise ValueError(f"{pattern[:80]!r} is not NAME or TENANT/NAME; `*` matches any part of a name")
    return pattern


def _endpoint(path: str) -> str:
    full = path if path.startswith("/") else f"/v1/{path.removeprefix('v1/')}"
    if full not in ENDPOINTS:
        raise ValueError(f"{path[:80]!r} is not one of {', '.join(ENDPOINTS)}")
    return ENDPOINTS[full].path  # by whichever of its paths it is called


def _hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    media_hosts(hosts)
    return hosts


def _passed(names: tuple[str, ...]) -> tuple[str, ...]:
    check_passed(names)
    return names


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


Rate = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=10**15)]
Requests = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Size = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Money = Annotated[
    Decimal,
    BeforeValidator(_exact_money),
    Field(gt=0, le=10**12, decimal_places=6, allow_inf_nan=False),
    AfterValidator(_plain),
]
Weight = Annotated[float, Field(strict=True, ge=0.001, le=1000, allow_inf_nan=False)]
Group = Annotated[str, AfterValidator(_group)]
Text = Annotated[str, Field(max_length=100), AfterValidator(_printable)]
CostCentre = Annotated[str, Field(max_length=64), AfterValidator(_label)]
Hosts = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=260)], ...],
    Field(max_length=100),
    AfterValidator(_hosts),
    AfterValidator(_once),
]
Names = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,100}$")], ...],
    Field(max_length=100),
    AfterValidator(_passed),
    AfterValidator(_once),
]
AdapterScopes = Annotated[
    tuple[Annotated[str, AfterValidator(_scope)], ...], Field(max_length=100), AfterValidator(_once)
]
EndpointScopes = Annotated[
    tuple[Annotated[str, AfterValidator(_endpoint)], ...], Field(max_length=20), AfterValidator(_once)
]


class LimitTerms(StrictBody):
    requests_per_minute: Rate | None = Field(None, description="Requests admitted; null: no limit.")
    tokens_per_minute: Tokens | None = Field(None, description="Prompt and output tokens together.")
    concurrent: Requests | None = Field(
        None, description="Requests between admission and the end of their answers, queued ones included."
    )
    queued: Annotated[int, Field(strict=True, ge=0, le=10**6)] | None = Field(
        None, description="Requests that wait for an engine; 0: none waits."
    )
    max_context: Tokens | None = Field(None, description="Prompt and output tokens of one request.")
    max_output: Tokens | None = Field(
        None, description="Output tokens of one request, all of its choices together."
    )


class BudgetTerms(StrictBody):
    tokens_per_day: Tokens | None = Field(None, description="Days and months are UTC's.")
    tokens_per_month: Tokens | None = Field(None, description="Prompt and output tokens together.")
    money_per_day: Money | None = Field(
        None, description="In the installation's currency, at its token prices.", examples=["99.50"]
    )
    money_per_month: Money | None = Field(None, description="Likewise.")
    warn_percent: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        80, description="From here on answers carry a warning, and the webhook is called once."
    )


class QuotaTerms(StrictBody):
    adapters: Size | None = Field(None, description="Adapters that it may have.")
    versions: Size | None = Field(None, description="Versions of one adapter that are not retired.")
    bytes: Annotated[int, Field(strict=True, ge=0, le=10**15)] | None = Field(
        None, description="Of all versions that are not retired."
    )
    max_rank: Annotated[int, Field(strict=True, ge=1, le=10**6)] | None = Field(
        None, description="Highest LoRA rank of its adapters."
    )
    uploads_per_hour: Size | None = Field(None, description="Uploads that it may begin.")
    keys: Size | None = Field(None, description="Valid keys.")


class PolicyTerms(StrictBody):
    """What differs from the installation's settings; null: as the settings say."""

    media_hosts: Hosts | None = Field(
        None, description="Hosts from which engines may fetch its media; empty: none."
    )
    chat_templates: bool | None = Field(None, description="Whether requests may bring a chat template.")
    structured_outputs: bool | None = Field(
        None, description="Whether requests may ask for structured outputs."
    )
    pass_fields: Names | None = Field(
        None, description="Fields unknown to Florin that are passed on to engines; empty: none."
    )


class TenantTerms(StrictBody):
    base_access: bool = Field(False, description="Allow calls to the base model.")
    requires: Labels = Field(
        default_factory=dict,
        description="Labels that an engine must have to hold the tenant's adapters and serve its requests; "
        "`region` and `gpu_type` count as labels.",
        examples=[{"region": "eu"}],
    )
    limits: LimitTerms | None = Field(None, description="Of all of its requests; null removes all of them.")
    budget: BudgetTerms | None = Field(None, description="Of all of its requests; null: none.")
    weight: Weight = Field(
        1.0, description="Its share of a busy fleet, relative to the other tenants' weights."
    )
    quotas: QuotaTerms | None = Field(
        None, description="What it may register itself, with a key of role tenant-admin."
    )
    policy: PolicyTerms | None = Field(
        None, description="Where its requests differ from the installation's settings."
    )
    cache_group: Group | None = Field(
        None,
        description="Tenants of one group share the engines' prefix caches; empty: none is shared.",
    )
    cost_centre: CostCentre | None = Field(
        None,
        description="Label of its usage in reports by cost centre, where neither the key nor the adapter of "
        "a request has one; null: none.",
        examples=["R&D"],
    )
    suspended: bool | None = Field(
        None, description="Whether its requests are refused. Its data stays, and running requests end."
    )


class ScopeTerms(StrictBody):
    adapters: AdapterScopes = Field(
        (),
        description="Adapters that it may call or change, `support` or `acme/support`; `*` matches any part "
        "of a name. Empty: all, and the base model.",
        examples=[["support", "shared/*"]],
    )
    endpoints: EndpointScopes = Field(
        (), description="Paths that it may call. Empty: all.", examples=[["/v1/chat/completions"]]
    )
    read_only: bool = Field(
        False, description="It may list and read, but neither call models nor change anything."
    )


class KeyTerms(StrictBody):
    label: Text | None = Field(None, description="What it is for.", examples=["checkout service"])
    scopes: ScopeTerms | None = Field(None, description="What it may do; null: everything that its role may.")
    limits: LimitTerms | None = Field(None, description="Of this key; the tenant's apply, too.")
    budget: BudgetTerms | None = Field(None, description="Of this key; the tenant's applies, too.")
    cost_centre: CostCentre | None = Field(
        None,
        description="Label of its usage in reports by cost centre; goes before that of the adapter and of "
        "the tenant.",
        examples=["R&D"],
    )
    priority: Priority = Field(
        Priority.NORMAL, description="A higher class is served first when requests wait for engines."
    )


_TENANTS_ONLY: Final = ("scopes", "limits", "budget", "priority", "cost_centre")


def check_terms(role: Role, terms: KeyTerms) -> None:
    """Only requests of tenants are limited, scoped and queued. Raises ValueError."""
    if role in TENANT_ROLES:
        return
    for name in _TENANTS_ONLY:
        if getattr(terms, name) != KeyTerms.model_fields[name].default:
            raise ValueError(f"{name}: only keys of role tenant or tenant-admin have this, not role {role}")


def updated(now: T, said: BaseModel, *, leave: AbstractSet[str] = frozenset()) -> T:
    """The frozen dataclass with the fields that `said` sets, but for those in `leave`."""
    changes: dict[str, Any] = {}
    for name in said.model_fields_set - leave:
        value = getattr(said, name)
        if value is None:
            changes[name] = _default(now, name)
        elif isinstance(value, BaseModel):
            changes[name] = updated(getattr(now, name), value)
        else:
            changes[name] = value
    return replace(now, **changes)  # type: ignore[type-var]  # T is a dataclass


def _default(instance: Any, name: str) -> Any:
    field = next(f for f in fields(instance) if f.name == name)
    factory: Any = field.default_factory
    return factory() if factory is not MISSING else field.default


def seconds(param: str, text: str) -> int:
    """Of a duration: `90s`, `30m`, `24h`, `90d`. Raises FlorinError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise FlorinError(
            "invalid_value", f"{param}: {text[:40]!r} is not a time like 30m, 24h or 90d.", param=param
        )
    return int(match[1]) * _UNITS[match[2]]


def expiry(param: str, text: str, now: int) -> int:
    """Unix microseconds of a duration from `now`, or of an ISO 8601 date or time. Raises FlorinError."""
    try:
        at = now + seconds(param, text) * 1_000_000 if _DURATION.fullmatch(text) else instant(param, text)
    except PeriodError as error:
        raise FlorinError(
            "invalid_value",
            f"{param}: {text[:40]!r} is neither a time like 90d nor a date like 2027-06-30.",
            param=param,
        ) from error
    if not now < at <= LAST_HOUR:
        raise FlorinError("invalid_value", f"{param}: {text[:40]!r} is not in the future.", param=param)
    return at
