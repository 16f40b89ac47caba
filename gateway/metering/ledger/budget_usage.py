"""What tenants and keys have used in a period: the tokens that count towards budgets."""

from __future__ import annotations

from sqlalchemy import case, func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import of_tenant, usage
from gateway.metering.records import CONTINUED


def tokens_used(
    ledger: Ledger, tenant: str, start: int, end: int, *, key: str = "", since: int = 0
) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens of the attempts that ended in [start, end) and that the tenant
    pays for, as in `AttemptMeter.billed`. `key`: only those of this key. `since`: only
    those that began then or later, when the tenant was added: names recur. Blocks. Raises
    LedgerUnavailableError."""
    table = usage.c
    anew = table.outcome.not_in(CONTINUED)  # a continued stream's prompt does not count
    sums = (
        func.sum(case((anew, table.prompt_tokens), else_=0)),
        func.sum(case((anew, table.cached_tokens), else_=0)),
        func.sum(table.completion_tokens),
    )
    query = select(*sums).where(
        of_tenant(tenant), table.ended >= max(start, since), table.ended < end, table.billable
    )
    if since > start:
        query = query.where(table.dispatched >= since)
    if key:
        query = query.where(table.key_id == key)
    with ledger.read() as connection:
        prompt, cached, completion = connection.execute(query).one()
    return int(prompt or 0), int(cached or 0), int(completion or 0)
