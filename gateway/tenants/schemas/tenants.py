"""Tenants: how the API describes them to operators, and to themselves."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.schemas.base import Answer
from gateway.tenants.keys.schemas import Key
from gateway.tenants.schemas.terms import TenantTerms
from gateway.tenants.terms import Budget, Limits, Quotas, RequestPolicy


class NewTenant(TenantTerms):
    name: str = Field(description="1 to 63 of a-z, 0-9, '-' and '_'.", examples=["acme"])


class OwnTenant(Answer):
    """What a tenant sees of its terms: nothing about engines and other tenants."""

    name: str
    base_access: bool = Field(description="It may call the base model without an adapter.")
    created: int = Field(description="Unix microseconds, UTC.")
    limits: Limits
    budget: Budget
    quotas: Quotas
    policy: RequestPolicy
    cost_centre: str
    prepaid: bool = Field(description="Its requests are refused once its prepaid credits are used up.")
    timezone: str


class Tenant(OwnTenant):
    requires: dict[str, str] = Field(
        description="Labels that an engine must have to hold its adapters and serve its requests."
    )
    weight: float = Field(description="Its share of a busy fleet, relative to the other tenants' weights.")
    organization: str = Field(description="The tenant whose limits of level `organization` apply, too.")
    cache_group: str = Field(description="Tenants of one group share prefix caches; empty: none is shared.")
    suspended: int | None = Field(
        description="Since when its requests are refused, Unix microseconds, UTC; null: they are served."
    )


class ChangedTenant(Tenant):
    warnings: tuple[str, ...] = Field(
        (),
        description="Fleets in which no engine meets its requirements, and that the name was an earlier "
        "tenant's.",
    )


class AddedTenant(ChangedTenant):
    name_used_before: bool | None = Field(
        None,
        description="Whether the ledger has usage of an earlier tenant of a new one's name; null: it could "
        "not be asked, or the tenant is not new.",
    )


class LimitUse(Answer):
    """What is used of one limit or budget, over all workers."""

    limit: str = Field(description="What is counted, and in which window.", examples=["requests_per_minute"])
    level: str = Field(
        "tenant", description="Whose requests count together.", examples=["tenant", "end user"]
    )
    used: int | str | None = Field(
        description="Money is decimal text. null: not known yet, or counted for each of many."
    )
    allowed: int | str
    resets: int | None = Field(
        description="When it is free again, Unix seconds, UTC; null for concurrent requests, totals and "
        "rolling windows."
    )
    would_refuse: int | None = Field(
        None, description="Requests that it would have refused today (UTC); null: it is no limit in shadow."
    )


class QuotaUse(Answer):
    limit: int | None
    used: int | None = Field(description="null: it is not counted.")


class OwnQueue(Answer):
    waiting: int = Field(
        description="Requests that wait for an engine with room, over all workers as last heard."
    )
    longest_wait: float = Field(
        description="Seconds that the oldest of this worker's waiting requests has waited."
    )


class Queue(OwnQueue):
    in_flight: int = Field(description="This worker's requests on engines.")
    served_share: float = Field(
        description="Its share of the weighted tokens served lately (most of it in the last two minutes), "
        "all workers together, in [0, 1]."
    )


class RequestError(Answer):
    """What a request ended with."""

    failed_at: int = Field(description="Unix microseconds, UTC.")
    code: str
    status: int
    request_id: str
    adapter: str = Field(description="Empty for the base model.")
    key: str = Field(description="The key's id.")


class AtAGlance(Answer):
    usage: tuple[LimitUse, ...] | None = Field(
        description="What it uses of its limits and budgets; null while Redis is away."
    )
    quota_use: dict[str, QuotaUse] = Field(description="What it has registered of each quota.")
    errors: tuple[RequestError, ...] = Field(description="The last errors of its requests, newest first.")
    currency: str = Field(
        description="Of amounts; empty: there is no price yet, or the ledger does not say in time."
    )


class TenantPage(Tenant, AtAGlance):
    """A tenant at a glance, for operators."""

    queue: Queue
    adapters: tuple[Adapter, ...] = Field(description="Its adapters, and where they are loaded.")
    keys: tuple[Key, ...] = Field(description="Also revoked and expired ones.")


CASCADED: Final = ("key", "share", "adapter")
"""What removing a tenant with `cascade` removes before it. Keys first: then nothing is called or added any
more."""


class Obstacle(Answer):
    """What has to go before a tenant can be removed."""

    kind: Literal["adapter", "share", "engine", "member", "key"] = Field(
        description="`share`: of another tenant's adapter; `engine`: one that is dedicated to it; `member`: "
        "a tenant of the organization that it is."
    )
    id: str
    command: str = Field(description="Removes it.")

    @property
    def cascades(self) -> bool:
        """Whether `cascade` removes it."""
        return self.kind in CASCADED


class FinalCharges(Answer):
    """What a tenant that is removed now is still charged. Later usage records become corrections."""

    months: tuple[str, ...] = Field(description="Open months for which it still gets a statement.")
    pending_lines: int = Field(description="Manual lines that wait for a second person.")
    last_month: str = Field(description="The month of its removal, with which its card ends.")
    rate_card: str | None = Field(description="Its own; null: none.")
    monthly_minimum: str = Field(description="Charged for the last month, too.")
    currency: str | None


class RemovedTenant(Answer):
    tenant: str
    removed: bool
    exists: bool = Field(description="Whether there was such a tenant.")
    obstacles: tuple[Obstacle, ...] = Field(
        description="What stands in the way, or, with `cascade`, was removed with it."
    )
    charges: FinalCharges
