"""A tenant's monthly statement as an HTML page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import Tagged, ledger_process_of
from gateway.costs.export.files import MissingPriceError
from gateway.costs.periods import PeriodError, month
from gateway.costs.rollups.rollup import roll
from gateway.costs.statement.page import statement_page
from gateway.errors import FlorinError
from gateway.tenants.directory import Role

router = APIRouter(route_class=Tagged)

_ROLL_SECONDS = 10.0
_HEADERS = {
    # The page has no scripts and loads nothing, so user-supplied text cannot do either.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


@router.get("/statements/{tenant}", response_class=HTMLResponse)
async def statement(
    tenant: str,
    *,
    key: FinanceKey,
    state: StateDep,
    whole_month: Annotated[str, Query(alias="month", description="`2026-11`.")],
) -> HTMLResponse:
    """A tenant's usage and costs of a month on a self-contained HTML page that prints on one A4 sheet.
    Preliminary until the month is closed. A tenant's key gets its own statement."""
    unknown = FlorinError("not_found", f"There is no statement for tenant {tenant[:70]!r}.")
    if key.role is Role.TENANT and tenant != key.tenant:
        raise unknown
    try:
        month(whole_month)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    await state.meter.flush()
    now = state.clock.now()
    await ledger_process_of(state, key).run(roll, now, patience=_ROLL_SECONDS)
    known = tenant in state.directory.tenants
    try:
        page = await ledger_process_of(state, key).run(
            statement_page, tenant, whole_month, issuer=state.settings.issuer, now=now, known=known
        )
    except MissingPriceError as error:
        raise FlorinError("missing_price", str(error)) from error
    if page is None:
        raise unknown
    return HTMLResponse(page, headers=_HEADERS)
