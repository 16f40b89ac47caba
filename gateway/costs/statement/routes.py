"""A tenant's monthly statement as a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, JSONResponse, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance_requests import Tagged, ledger_process_of, missing_price, month_of, require_own_month
from gateway.costs.export.files import MissingPriceError
from gateway.costs.prices.exchange_rates import ExchangeRateError
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.statement.page import statement_csv, statement_json, statement_page
from gateway.costs.statement.schemas import Statement
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness, refresh
from gateway.operations.state import State

_MAKE: dict[str, Callable[..., Any]] = {
    "html": statement_page,
    "json": statement_json,
    "csv": statement_csv,
}
router = APIRouter(route_class=Tagged)

_HEADERS = {
    # The page has no script and loads nothing; text from tenants cannot add either.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


@router.get(
    "/statements/{tenant}",
    response_model=Statement,
    responses={200: {"content": {"text/html": {}, "text/csv": {}}}},
)
async def statement(
    tenant: str,
    *,
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str, Query(description="`2026-11`.")],
    form: Annotated[
        Literal["html", "json", "csv"],
        Query(alias="format", description="A page, its figures, or a table whose amounts sum to it."),
    ] = "html",
    by: Annotated[
        str | None,
        Query(description=f"Also divide the amount by one of {', '.join(DIMENSIONS)}."),
    ] = None,
    currency: Annotated[
        str | None,
        Query(
            pattern="^[A-Z]{3}$",
            description="Convert at the exchange rate of the month's end, rounded once. Default: the price "
            "book's, which the seal covers.",
        ),
    ] = None,
) -> Response:
    """What a tenant is charged for a month: by its rate card, or without one what its usage cost. A
    self-contained HTML page that prints on one sheet of A4 (with `by`, on two), JSON or CSV. With `by`, the
    parts, the share of unused time and what else has no such name sum to the amount. Preliminary until the
    month is closed. A tenant's key gets only its own."""
    unknown = FlorinError("not_found", f"No statement for {tenant[:70]!r}.")
    if key.own_tenant not in (None, tenant):
        raise unknown
    month_of(month)
    if by is not None and by not in DIMENSIONS:
        raise FlorinError(
            "invalid_value", f"by: {by[:40]!r} is not one of {', '.join(DIMENSIONS)}.", param="by"
        )
    process = ledger_process_of(state, key)
    complete = await refresh(state, process)
    await require_own_month(state, key, month)
    now, known = state.clock.now(), tenant in state.directory.tenants
    try:
        page = await process.run(
            _MAKE[form],
            tenant,
            month,
            issuer=state.settings.issuer,
            now=now,
            complete=completeness(state, complete=complete)["complete"],
            known=known,
            currency=currency,
            for_tenant=key.own_tenant is not None,
            by=by,
            labels=_key_labels(state, tenant) if by == "key" else {},
        )
    except ExchangeRateError as error:
        raise FlorinError("invalid_value", error.message, param=error.param) from error
    except MissingPriceError as error:
        raise missing_price(error, key) from error
    if page is None:
        raise unknown
    if isinstance(page, bytes):
        return Response(page, media_type="text/csv")
    return HTMLResponse(page, headers=_HEADERS) if isinstance(page, str) else JSONResponse(page)


def _key_labels(state: State, tenant: str) -> dict[str, str]:
    keys = state.directory.keys.values()
    return {key.id: key.label for key in keys if key.tenant == tenant and key.label}
