"""Standing policies: who pays for unused GPU time, agreed in advance for the installation and for tenants.

Append-only. The row with the latest `valid_from` up to a month holds for that month, the last recorded of
several. Previews, statements, reports and exports of open months follow it, and so does closing the month;
then it is part of the month's terms, which never change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exists, func, insert, select

from gateway.costs.allocation import NONE, OWN_POLICIES, AllocationPolicy
from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso, month_of
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups
from gateway.metering.ledger.schema import standing_policies as table
from gateway.metering.ledger.sealed_months import check_months

INSTALLATION = ""
"""The tenant of the installation's own rows."""
DEFAULT = "default"
"""The policy of a tenant that follows the installation's."""
FIRST_MONTH = "1970-01"


class StandingPolicyError(FieldError):
    """The policy cannot be set; `param` names the field, and the message says what to do."""


@dataclass(frozen=True, slots=True)
class StandingPolicy:
    tenant: str
    """INSTALLATION, or a tenant."""
    policy: str
    shares: Mapping[str, int]
    valid_from: str
    """A month."""
    recorded_at: int
    """Unix microseconds, UTC."""
    recorded_by: str
    reason: str

    def document(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant or None,
            "policy": self.policy,
            "shares": dict(self.shares),
            "valid_from": self.valid_from,
            "recorded_at": iso(self.recorded_at),
            "recorded_by": self.recorded_by,
            "reason": self.reason,
        }


def first_open_month(connection: Connection) -> str:
    """The month after the last one that is closed or being closed; FIRST_MONTH if none is. Raises
    MonthChangedError."""
    check_months(connection)
    last = connection.execute(select(func.max(periods.c.month))).scalar_one_or_none()
    return FIRST_MONTH if last is None else iso(month_of(last).end)[:7]


def unknown_tenants(ledger: Ledger, names: Iterable[str]) -> list[str]:
    """Those of the names that never used anything. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return [
            name
            for name in names
            if not connection.execute(select(exists().where(rollups.c.tenant == name))).scalar()
        ]


def history(connection: Connection, tenant: str | None = None) -> list[StandingPolicy]:
    """All rows in the order in which they were recorded. `tenant`: only its own and the installation's."""
    query = select(table).order_by(table.c.id)
    if tenant is not None:
        query = query.where(table.c.tenant.in_((INSTALLATION, tenant)))
    return [
        StandingPolicy(
            row.tenant,
            row.policy,
            json.loads(row.shares),
            row.valid_from,
            row.recorded_at,
            row.recorded_by,
            row.reason,
        )
        for row in connection.execute(query)
    ]


def standing_policy(connection: Connection, month: str) -> AllocationPolicy:
    """The policy that holds for the month while it is open; NONE if none was ever set."""
    standing: dict[str, StandingPolicy] = {}
    for row in history(connection):
        known = standing.get(row.tenant)
        if row.valid_from <= month and (known is None or row.valid_from >= known.valid_from):
            standing[row.tenant] = row
    common = standing.pop(INSTALLATION, None)
    own = {tenant: row.policy for tenant, row in standing.items() if row.policy != DEFAULT}
    if common is None:
        return AllocationPolicy(own=own) if own else NONE
    return AllocationPolicy(common.policy, common.shares, own)


def set_policy(
    ledger: Ledger,
    policy: AllocationPolicy,
    *,
    tenant: str = INSTALLATION,
    default: bool = False,
    valid_from: str | None = None,
    by: str,
    reason: str,
    now: int,
    actor: str = "",
) -> tuple[str, bool]:
    """Set the installation's policy, or a tenant's own. Returns the first month to which it applies, and
    False if it already holds there, in which case nothing is recorded.

    `default`: the tenant follows the installation's policy again. `valid_from`: a month; by default the first
    open one. `by`: the key's id. `actor`: recorded in the audit log; empty to record nothing.

    Raises StandingPolicyError, PeriodError, LedgerUnavailableError."""
    name = _name(policy, tenant, default=default)
    with ledger.write() as connection:
        # Setting a policy and closing a month both take a batch first, so they run one after the other.
        next_batch(connection)
        opened = first_open_month(connection)
        since = valid_from or opened
        month_of(since)
        if since < opened:
            raise StandingPolicyError(
                "from",
                f"{since} is closed, and its policy can no longer change; the first open month is {opened}.",
            )
        if _holds(connection, since, tenant, name, policy):
            return since, False
        row = StandingPolicy(tenant, name, policy.shares, since, now, by, reason)
        values = row.document() | {
            "tenant": tenant,
            "shares": json.dumps(dict(policy.shares), sort_keys=True),
            "recorded_at": now,
        }
        connection.execute(insert(table).values(values))
        seal(connection, "policy", tenant)
        details = {"policy": name, "shares": dict(policy.shares), "from": since, "reason": reason}
        record(connection, actor, "policy.set", tenant or "installation", details, now)
    return since, True


def _name(policy: AllocationPolicy, tenant: str, *, default: bool) -> str:
    if tenant == INSTALLATION:
        if default:
            raise StandingPolicyError(
                "tenant", f"{DEFAULT} is for a tenant: it follows the installation's policy."
            )
        return policy.name
    if default:
        return DEFAULT
    if policy.name not in OWN_POLICIES:
        raise StandingPolicyError(
            "policy",
            f"A tenant's own policy is one of {', '.join(OWN_POLICIES)} or {DEFAULT}. "
            "Fixed shares are part of the installation's policy.",
        )
    return policy.name


def _holds(connection: Connection, since: str, tenant: str, name: str, policy: AllocationPolicy) -> bool:
    """Whether it holds from `since` on, until the next row."""
    now = standing_policy(connection, since)
    if tenant == INSTALLATION:
        known = any(row.tenant == INSTALLATION and row.valid_from <= since for row in history(connection))
        return known and (now.name, dict(now.shares)) == (name, dict(policy.shares))
    return now.own.get(tenant, DEFAULT) == name
