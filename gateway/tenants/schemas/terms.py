"""The terms of tenants and keys: the one definition of each limit, budget, quota, policy and scope, with how
people read it and type it.

In a body, a field that is left out stays as it is, and null restores its default: for a limit, none. To add a
field: here, in the data (`gateway.tenants.terms`), and where it is enforced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints

from adapters.errors import InvalidNameError
from adapters.model import check_name
from gateway.dataplane.labels import storable
from gateway.schemas.base import Labels, StrictBody
from gateway.schemas.options import Option, OptionField, options_of
from gateway.schemas.typed_text import written
from gateway.tenants.terms import Priority, RuleText

T = TypeVar("T")
_NAME_SPACE: Final = re.compile(r"(?:[a-z0-9_*-]{1,63}/)?[a-z0-9_*-]{1,63}", re.ASCII)


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


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:  # a folder, a path, or no such zone
        raise ValueError(f"{name[:64]!r} is not a timezone such as Europe/Berlin") from error
    return name


def _tenant_name(name: str) -> str:
    try:
        return check_name("tenant", name) if name else name
    except InvalidNameError as error:
        raise ValueError(str(error)) from error


def _endpoint(path: str) -> str:
    from gateway.dialects.endpoints import ENDPOINTS  # noqa: PLC0415  # slow; the command line checks nothing

    full = path if path.startswith("/") else f"/v1/{path.removeprefix('v1/')}"
    if full not in ENDPOINTS:
        raise ValueError(f"{path[:80]!r} is not one of {', '.join(ENDPOINTS)}")
    return ENDPOINTS[full].path  # by whichever of its paths it is called


def _hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    from gateway.fields.media import media_hosts  # noqa: PLC0415  # likewise

    media_hosts(hosts)
    return hosts


def _passed(names: tuple[str, ...]) -> tuple[str, ...]:
    from gateway.fields.tables import check_passed  # noqa: PLC0415  # likewise

    check_passed(names)
    return names


def _scope(pattern: str) -> str:
    if _NAME_SPACE.fullmatch(pattern) is None:
        raise ValueError(f"{pattern[:80]!r} is not NAME or TENANT/NAME; `*` matches any part of a name")
    return pattern


def _once(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


Rate = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=10**15)]
Requests = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Waiting = Annotated[int, Field(strict=True, ge=0, le=10**6)]
Size = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=10**15)]
Percent = Annotated[int, Field(strict=True, ge=1, le=100)]
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
Zone = Annotated[str, StringConstraints(max_length=64), AfterValidator(_zone)]
TenantName = Annotated[str, AfterValidator(_tenant_name)]
AdapterScopes = Annotated[
    tuple[Annotated[str, AfterValidator(_scope)], ...], Field(max_length=100), AfterValidator(_once)
]
Rules = Annotated[
    tuple[RuleText, ...],
    Field(max_length=50),
    AfterValidator(_once),
]
EndpointScopes = Annotated[
    tuple[Annotated[str, AfterValidator(_endpoint)], ...], Field(max_length=20), AfterValidator(_once)
]

_limit = partial(Option, clears=True, unset="no limit")
_money = partial(_limit, kind="money")
_policy = partial(Option, clears=True, unset="as the settings say")
_allowed = partial(Option, unset="as the settings say", choices={"yes": "Allowed", "no": "Refused"})
_PRIORITIES: Final = {"high": "High: served first", "normal": "Normal", "low": "Low: served last"}
_scopes = partial(Option, clears=True, words="{}")


class LimitTerms(StrictBody):
    requests_per_minute: Annotated[Rate | None, _limit("Requests per minute")] = Field(
        None, description="Requests admitted in a minute."
    )
    tokens_per_minute: Annotated[Tokens | None, _limit("Tokens per minute")] = Field(
        None, description="Prompt and output tokens together, in a minute."
    )
    concurrent: Annotated[Requests | None, _limit("Requests at a time")] = Field(
        None, description="Requests between admission and the end of their answers, queued ones included."
    )
    queued: Annotated[Waiting | None, _limit("Requests that may wait")] = Field(
        None, description="Requests that wait for an engine; 0: none waits."
    )
    max_context: Annotated[Tokens | None, _limit("Tokens of one request")] = Field(
        None, description="Prompt and output tokens of one request."
    )
    max_output: Annotated[Tokens | None, _limit("Output tokens of one request")] = Field(
        None, description="Output tokens of one request, all of its choices together."
    )
    rules: Annotated[Rules, Option("Other limits", "--limit", clears=True, metavar="LIMIT", words="{}")] = (
        Field(
            (),
            description="Further limits, `MEASURE/WINDOW=AMOUNT`, such as `tokens/hour=5M`. Measures: "
            "`requests`, `tokens`, `money`, `concurrent` (without a window). Windows: `minute`, `hour`, "
            "`day`, `week`, `month`, `total`, `session`, `5h`, `rolling-hour`, `rolling-day`, "
            "`rolling-week`, `rolling-month`. With `key:`, `adapter:`, `user:` or `tag:` before it, each has "
            "it to itself; with a name, as `adapter/support:`, that one; with `organization:`, the tenants "
            "of this organization have it together. With `shadow:` before all, it counts what it would "
            "refuse, and refuses nothing.",
            examples=[["user:tokens/5h=200k", "adapter/support:concurrent=4", "shadow:requests/day=10000"]],
        )
    )
    user_required: Annotated[
        bool, Option("Requests must name their end user", "--require-user/--no-require-user")
    ] = Field(False, strict=True, description="Refuse requests without `safety_identifier` or `user`.")


class BudgetTerms(StrictBody):
    tokens_per_day: Annotated[Tokens | None, _limit("Tokens per day", "--budget-tokens-day")] = Field(
        None, description="Prompt and output tokens together, in a day of the tenant's timezone."
    )
    tokens_per_month: Annotated[Tokens | None, _limit("Tokens per month", "--budget-tokens-month")] = Field(
        None, description="Prompt and output tokens together, in a month of the tenant's timezone."
    )
    money_per_day: Annotated[
        Money | None, _money("Money per day", "--budget-money-day", words="{} per day")
    ] = Field(
        None,
        description="In the installation's currency, at the rate card, in a day of the tenant's timezone.",
        examples=["99.50"],
    )
    money_per_month: Annotated[
        Money | None, _money("Money per month", "--budget-money-month", words="{} per month")
    ] = Field(
        None,
        description="In the installation's currency, at the rate card, in a month of the tenant's timezone.",
    )
    warn_percent: Annotated[
        Percent, Option("Warn from this percentage on", "--budget-warn", words="warning at {} %")
    ] = Field(80, description="From here on answers carry a warning, and the webhook is called once.")


class QuotaTerms(StrictBody):
    adapters: Annotated[Size | None, _limit("Adapters", "--max-adapters")] = Field(
        None, description="Adapters that it may have."
    )
    versions: Annotated[Size | None, _limit("Versions of one adapter", "--max-versions")] = Field(
        None, description="Versions of one adapter that are not retired."
    )
    bytes: Annotated[
        Bytes | None, _limit("Size of all versions", "--max-bytes", kind="size", words="{} of versions")
    ] = Field(None, description="Bytes of all versions that are not retired.", examples=["10 GB"])
    max_rank: Annotated[Requests | None, _limit("Rank of an adapter", words="rank {}")] = Field(
        None, description="Highest LoRA rank of its adapters."
    )
    uploads_per_hour: Annotated[Size | None, _limit("Uploads per hour")] = Field(
        None, description="Uploads that it may begin in an hour."
    )
    keys: Annotated[Size | None, _limit("Valid keys", "--max-keys")] = Field(None, description="Valid keys.")


class PolicyTerms(StrictBody):
    """What differs from the installation's settings; null: as the settings say."""

    media_hosts: Annotated[
        Hosts | None, _policy("Media from these hosts", "--media-host", metavar="HOST", words="media from {}")
    ] = Field(None, description="Hosts from which engines may fetch its media; empty: none.")
    chat_templates: Annotated[
        bool | None, _allowed("Chat templates", "--chat-templates/--no-chat-templates")
    ] = Field(None, description="Whether requests may bring a chat template.")
    structured_outputs: Annotated[
        bool | None, _allowed("Structured outputs", "--structured-outputs/--no-structured-outputs")
    ] = Field(None, description="Whether requests may ask for structured outputs.")
    pass_fields: Annotated[
        Names | None,
        _policy("Unknown fields that engines get", "--pass-field", metavar="FIELD", words="also fields {}"),
    ] = Field(None, description="Fields unknown to Florin that are passed on to engines; empty: none.")


class TenantTerms(StrictBody):
    base_access: Annotated[
        bool, Option("It may call the base model, too", "--base-access/--no-base-access")
    ] = Field(False, description="Allow calls to the base model.")
    requires: Annotated[Labels, Option("Engines must have", "--require")] = Field(
        default_factory=dict,
        description="Labels that an engine must have to hold the tenant's adapters and serve its requests; "
        "`region` and `gpu_type` count as labels.",
        examples=[{"region": "eu"}],
    )
    limits: LimitTerms | None = Field(
        None, description="Of all of its requests, over all gateways; null removes all of them."
    )
    budget: BudgetTerms | None = Field(
        None, description="Of all of its requests, which are refused beyond it; null: none."
    )
    weight: Annotated[Weight, Option()] = Field(
        1.0, description="Its share of a busy fleet, relative to the other tenants' weights."
    )
    quotas: QuotaTerms | None = Field(
        None, description="What it may register itself, with a key of role tenant-admin."
    )
    policy: PolicyTerms | None = Field(
        None, description="Where its requests differ from the installation's settings."
    )
    cache_group: Annotated[Group | None, Option(clears=True, metavar="GROUP")] = Field(
        None,
        description="Tenants of one group share the engines' prefix caches, and could learn of each other's "
        "prompts by timing; empty: none is shared.",
    )
    cost_centre: Annotated[CostCentre | None, Option(clears=True, metavar="LABEL")] = Field(
        None,
        description="Label of its usage in reports by cost centre, where neither the key nor the adapter of "
        "a request has one; null: none.",
        examples=["R&D"],
    )
    prepaid: Annotated[bool, Option("Refused without prepaid credits", "--prepaid/--no-prepaid")] = Field(
        False,
        description="Refuse its requests once its prepaid credits are used up. Otherwise they go on, and it "
        "is billed.",
    )
    timezone: Annotated[Zone, Option(metavar="ZONE", clears=True)] = Field(
        "UTC",
        description="In which the hours, days, weeks and months of its limits begin.",
        examples=["Europe/Berlin"],
    )
    organization: Annotated[TenantName, Option(metavar="TENANT", clears=True)] = Field(
        "",
        description="The tenant whose limits of level `organization` count its requests, too, such as the "
        "reseller whose customer it is; empty: none.",
    )
    suspended: bool | None = Field(
        None, description="Whether its requests are refused. Its data stays, and running requests end."
    )


class ScopeTerms(StrictBody):
    adapters: Annotated[AdapterScopes, _scopes("Adapters", "--adapter", metavar="ADAPTER")] = Field(
        (),
        description="Adapters that it may call or change, `support` or `acme/support`; `*` matches any part "
        "of a name. Empty: all, and the base model.",
        examples=[["support", "shared/*"]],
    )
    endpoints: Annotated[EndpointScopes, _scopes("Endpoints", "--endpoint", metavar="PATH")] = Field(
        (), description="Paths that it may call. Empty: all.", examples=[["/v1/chat/completions"]]
    )
    read_only: Annotated[bool, Option("Read only", "--read-only/--no-read-only")] = Field(
        False, description="It may list and read, but neither call models nor change anything."
    )


class KeyTerms(StrictBody):
    label: Annotated[Text | None, Option(metavar="TEXT")] = Field(
        None, description="What it is for.", examples=["checkout service"]
    )
    scopes: ScopeTerms | None = Field(None, description="What it may do; null: everything that its role may.")
    limits: LimitTerms | None = Field(None, description="Of this key; the tenant's apply, too.")
    budget: BudgetTerms | None = Field(None, description="Of this key; the tenant's applies, too.")
    cost_centre: Annotated[CostCentre | None, Option(clears=True, metavar="LABEL")] = Field(
        None,
        description="Label of its usage in reports by cost centre; goes before that of the adapter and of "
        "the tenant.",
        examples=["R&D"],
    )
    priority: Annotated[Priority, Option(choices=_PRIORITIES)] = Field(
        Priority.NORMAL, description="A higher class is served first when requests wait for engines."
    )


def section(name: str, body: type[BaseModel] = TenantTerms) -> list[OptionField]:
    """The fields of a tenant's limits, budget, quotas or policy, or of a key's scopes."""
    return list(options_of(body, name))


def in_words(
    terms: object,
    fields: Iterable[OptionField],
    shown: Callable[[OptionField, Any], str] = lambda field, value: written(field.kind, value),
) -> list[str]:
    """What is not as it is by default: `600 requests per minute`, `no chat templates`. `terms`: an object
    with these fields. `shown`: a value of one, as text."""
    values = [(field, getattr(terms, field.path[-1])) for field in fields]
    return [field.in_words(value, shown(field, value)) for field, value in values if value != field.default]
