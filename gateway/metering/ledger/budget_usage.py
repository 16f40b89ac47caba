"""What tenants and keys have used in a period: the tokens that count towards budgets."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import case, func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import of_tenant, usage
from gateway.metering.records import CONTINUED


class Used(NamedTuple):
    """What was used of an adapter, on a GPU type."""

    adapter: str
    base_model: str
    gpu_type: str
    service_tier: str
    task: str
    prompt: int
    cached: int
    completion: int
    reasoning: int
    requests: int


def tokens_used(
    ledger: Ledger, tenant: str, start: int, end: int, *, key: str = "", adapter: str = "", since: int = 0
) -> list[Used]:
    """The attempts that ended in [start, end) and that the tenant pays for, as in `AttemptMeter.billed`.
    `key`, `adapter`: only theirs. `since`: only those that began then or later, when the tenant was added:
    names recur. Blocks. Raises LedgerUnavailableError."""
    table = usage.c
    anew = table.outcome.not_in(CONTINUED)  # a continued stream's prompt does not count
    sums = (
        func.sum(case((anew, table.prompt_tokens), else_=0)),
        func.sum(case((anew, table.cached_tokens), else_=0)),
        func.sum(table.completion_tokens),
        func.sum(table.reasoning_tokens),
        func.sum(case((anew, 1), else_=0)),
    )
    names = (table.adapter, table.base_model, table.gpu_type, table.service_tier, table.task)
    query = select(*names, *sums).where(
        of_tenant(tenant), table.ended >= max(start, since), table.ended < end, table.billable
    )
    if since > start:
        query = query.where(table.dispatched >= since)
    if key:
        query = query.where(table.key_id == key)
    if adapter:
        query = query.where(table.adapter == adapter)
    with ledger.read() as connection:
        rows = connection.execute(query.group_by(*names)).all()
    return [Used(*row[:5], *(int(count or 0) for count in row[5:])) for row in rows]
