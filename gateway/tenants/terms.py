"""What an operator grants a tenant and its keys: limits, budgets, quotas, and which requests reach an engine.

Data only; None always means no limit. `gateway.tenants.schemas.terms` says what each field means.
`gateway.tenants.limits` enforces limits and budgets, `gateway.fleet.adapters.operations` the quotas of
self-service, and `gateway.fields` the request policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Priority(StrEnum):
    """A class of requests. A higher class is served first, whatever a tenant has used. It belongs to the key:
    clients cannot choose it."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a tenant, or of one key; both apply. Over all workers and hosts."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    queued: int | None = None
    max_context: int | None = None
    max_output: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a tenant, or of one key; both apply. Days and months are UTC's."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_day: Decimal | None = None
    money_per_month: Decimal | None = None
    warn_percent: int = 80


@dataclass(frozen=True, slots=True)
class PrepaidBudget(Budget):
    """The budget of a tenant whose prepaid credits allow less than its own: `money_per_month` is what the
    month can draw of them."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a tenant may register itself, with a key of role tenant-admin."""

    adapters: int | None = None
    versions: int | None = None
    bytes: int | None = None
    max_rank: int | None = None
    uploads_per_hour: int | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """Where a tenant's requests differ from the installation's settings. None: as the settings say."""

    media_hosts: tuple[str, ...] | None = None
    chat_templates: bool | None = None
    structured_outputs: bool | None = None
    pass_fields: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scopes:
    """What a key may do. Empty: everything that its role may."""

    adapters: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    read_only: bool = False


NO_LIMITS = Limits()
NO_BUDGET = Budget()
NO_QUOTAS = Quotas()
DEFAULT_POLICY = RequestPolicy()
ALL_SCOPES = Scopes()
