"""A tenant's monthly statement as a page."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance_requests import Tagged, ledger_process_of, missing_price, month_of, require_own_month
from gateway.costs.export.files import MissingPriceError
from gateway.costs.periods import month_of as whole_month
from gateway.costs.rollups.parts import DIMENSIONS
from gateway.costs.statement.issuing import Form, UnknownNumberError, show
from gateway.costs.statement.schemas import CreditNote, Statement
from gateway.costs.statement.statement_figures import is_final
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness, completeness_headers, refreshed
from gateway.operations.state import State
from gateway.schemas.finance import Currency

_MEDIA: dict[Form, str] = {"html": "text/html", "json": "application/json", "csv": "text/csv"}
router = APIRouter(route_class=Tagged)

_HEADERS = {
    # The page has no script and loads nothing; text from tenants cannot add either.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


@router.get(
    "/statements/{tenant}",
    response_model=Statement | CreditNote,
    responses={200: {"content": {"text/html": {}, "text/csv": {}}}},
)
async def statement(
    tenant: str,
    *,
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str, Query(description="`2026-11`.")],
    form: Annotated[
        Form,
        Query(alias="format", description="A page, its figures, or a table whose amounts sum to it."),
    ] = "html",
    by: Annotated[
        str | None,
        Query(description=f"Also divide the amount by one of {', '.join(DIMENSIONS)}."),
    ] = None,
    currency: Annotated[
        Currency | None,
        Query(
            description="Convert at the exchange rate of the month's end, rounded once. Default: the price "
            "book's, which the seal covers, or the invoice's.",
        ),
    ] = None,
    number: Annotated[
        str | None,
        Query(
            max_length=60,
            description="Of an invoice or credit note of that month. Default: the invoice that counts.",
        ),
    ] = None,
) -> Response:
    """What a tenant is charged for a month: by its rate card, or without one what its usage cost. A
    self-contained HTML page that prints on one sheet of A4 (with `by`, on two), JSON or CSV. With `by`, the
    parts, the share of unused time and what else has no such name sum to the amount. Preliminary until the
    month is closed. Once it was issued as an invoice, always the same bytes; a later correction has a number
    of its own. The headers of a preliminary one say, as an export's do, whether its figures are complete. A
    tenant's key gets only its own."""
    unknown = FlorinError("not_found", f"No statement for {tenant[:70]!r}.")
    if key.own_tenant not in (None, tenant):
        raise unknown
    month_of(month)
    if by is not None and by not in DIMENSIONS:
        raise FlorinError(
            "invalid_value", f"by: {by[:40]!r} is not one of {', '.join(DIMENSIONS)}.", param="by"
        )
    process = ledger_process_of(state, key)
    lacks = await refreshed(state, process, whole_month(month), tenant)
    await require_own_month(state, key, month)
    now, known = state.clock.now(), tenant in state.directory.tenants
    headers = _HEADERS if form == "html" else {}
    if not await process.run(is_final, tenant, month):
        headers = headers | completeness_headers(state, lacks)
    try:
        content = await process.run(
            show,
            tenant,
            month,
            form=form,
            number=number,
            issuer=state.settings.issuer,
            now=now,
            completeness=completeness(state, lacks),
            known=known,
            currency=currency,
            for_tenant=key.own_tenant is not None,
            by=by,
            labels=_key_labels(state, tenant) if by == "key" else {},
        )
    except MissingPriceError as error:
        raise missing_price(error, key) from error
    except UnknownNumberError as error:
        raise FlorinError("not_found", str(error), param="number") from error
    if content is None:
        raise unknown
    return Response(content, media_type=_MEDIA[form], headers=headers)


def _key_labels(state: State, tenant: str) -> dict[str, str]:
    keys = state.directory.keys.values()
    return {key.id: key.label for key in keys if key.tenant == tenant and key.label}
