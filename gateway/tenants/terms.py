"""What an operator grants a tenant and its keys: limits, budgets, quotas, and which requests reach an engine.

Data only: `gateway.admission` enforces limits and budgets, `gateway.operations` the quotas of
self-service, and `gateway.fields` the request policy. None always means no limit.
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
    """Of a tenant, or of one key; both apply. Over all workers and hosts."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""
    concurrent: int | None = None
    """Requests between admission and the end of their answers, queued ones included."""
    queued: int | None = None
    """Requests that wait for an engine."""
    max_context: int | None = None
    """Prompt and output tokens of one request."""
    max_output: int | None = None
    """Output tokens of one request, all of its choices together."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Of a tenant, or of one key; both apply. Days and months are UTC's."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_day: Decimal | None = None
    """In the installation's currency, at its token prices."""
    money_per_month: Decimal | None = None
    warn_percent: int = 80
    """Soft threshold: from here on answers carry a warning, and the webhook is called once."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a tenant may register itself, with a key of role tenant-admin."""

    adapters: int | None = None
    versions: int | None = None
    """Versions of one adapter that are not retired."""
    bytes: int | None = None
    """Of all versions that are not retired."""
    max_rank: int | None = None
    uploads_per_hour: int | None = None
    keys: int | None = None
    """Valid keys."""


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """Where a tenant's requests differ from the installation's settings. None: as the settings say."""

    media_hosts: tuple[str, ...] | None = None
    """Hosts from which engines may fetch the tenant's media."""
    chat_templates: bool | None = None
    """Whether requests may bring a chat template."""
    structured_outputs: bool | None = None
    pass_fields: tuple[str, ...] | None = None
    """Fields unknown to Florin that are passed on to engines."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """What a key may do. Empty: everything that its role may."""

    adapters: tuple[str, ...] = ()
    """Adapters that it may call or change, `support` or `acme/support`; `*` matches any part of a name."""
    endpoints: tuple[str, ...] = ()
    """Data-plane paths that it may call, such as `/v1/chat/completions`."""
    read_only: bool = False
    """It may list and read, but neither call models nor change anything."""


NO_LIMITS = Limits()
NO_BUDGET = Budget()
NO_QUOTAS = Quotas()
DEFAULT_POLICY = RequestPolicy()
ALL_SCOPES = Scopes()
