"""Whether a tenant exists, so that a mistyped name is an error and not an empty report."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches

from sqlalchemy import select

from gateway.errors import FlorinError
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rollups, usage
from gateway.operations.state import State


async def require_tenant(state: State, name: str) -> None:
    """Raises FlorinError unless the registry knows the tenant or it has usage, and LedgerUnavailableError."""
    if name in state.directory.tenants or await asyncio.to_thread(has_usage, state.ledger, name):
        return
    meant = get_close_matches(name, state.directory.tenants, n=1)
    advice = f" Did you mean {meant[0]!r}?" if meant else " florin tenant list shows them all."
    raise FlorinError(
        "not_found",
        f"There is no tenant {name[:100]!r}, and none of that name has any usage.{advice}",
        param="tenant",
    )


async def used_before(state: State, name: str) -> bool | None:
    """Whether an earlier tenant of a new one's name has usage in the ledger; None: the ledger is
    unavailable."""
    try:
        await state.meter.flush()
        return await asyncio.to_thread(has_usage, state.ledger, name)
    except LedgerUnavailableError:
        return None


def has_usage(ledger: Ledger, tenant: str) -> bool:
    """Whether the ledger has anything of a tenant, also of one that was removed from the registry. Raises
    LedgerUnavailableError."""
    if not tenant.isprintable():  # PostgreSQL refuses NUL
        return False
    with ledger.read() as connection:
        return any(
            connection.execute(select(table.c.tenant).where(table.c.tenant == tenant).limit(1)).first()
            for table in (rollups, usage)
        )
