"""Read the audit log, from the ledger and Redis together, and what became of one request."""

from __future__ import annotations

import asyncio

from adapters.errors import StoreUnavailableError
from gateway.installation.audit.schemas import TenantError
from gateway.metering.ledger.audit_log import Logged, Subjects, Wanted, read
from gateway.metering.ledger.audit_shipper import tail
from gateway.metering.records import UsageRecord
from gateway.operations.state import State


async def entries(state: State, filters: Wanted, limit: int) -> tuple[list[Logged], bool]:
    """Entries, newest first, and whether they are complete: while Redis is unavailable, those of the last
    seconds may be missing. Raises LedgerUnavailableError."""
    # Redis is read first, so that entries shipped meanwhile appear in both, never in neither.
    try:
        recent, complete = await tail(state.store), True
    except StoreUnavailableError:
        recent, complete = [], False
    shipped = await asyncio.to_thread(read, state.ledger, filters, limit)
    entries = {(e.id, e.digest): e for e in (*shipped, *filter(filters.takes, recent))}
    return sorted(entries.values(), key=lambda e: e.position, reverse=True)[:limit], complete


def own_subjects(state: State, tenant: str | None) -> Subjects | None:
    """What a tenant may see; None, for an operator: everything."""
    if tenant is None:
        return None
    known = state.directory.tenants.get(tenant)
    keys = frozenset(key.id for key in state.directory.keys.values() if key.own_tenant == tenant)
    return Subjects(tenant, keys, known.created if known else state.clock.now())


async def attempts(state: State, request_id: str) -> tuple[list[UsageRecord], bool]:
    """The attempts of one request, in order, and whether they are complete: records take a second or two to
    reach the ledger. Raises LedgerUnavailableError."""
    complete = await state.meter.flush()
    records = await asyncio.to_thread(state.ledger.attempts, request_id)
    return records, complete and bool(records)


async def error_of(state: State, request_id: str) -> TenantError | None:
    """The error that a request ended with, and its tenant, if it is among the last errors of one. That is all
    there is of a request that was refused before it reached an engine."""
    created = {tenant.name: tenant.created for tenant in state.directory.tenants.values()}
    known = await state.lifecycle.activity.find_error(request_id, list(created))
    error = known and TenantError.model_validate(known)
    return error if error and error.failed_at >= created[error.tenant] else None
