"""Usage and cost, grouped."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import (
    After,
    From,
    Month,
    Tagged,
    Tenant,
    To,
    dimensions_of,
    ledger_process_of,
    only_staff,
    period_of,
    position,
    preferred,
    tenants_of,
    token,
)
from gateway.costs.allocation import AllocationPolicy, PolicyError, policy_of
from gateway.costs.cost_lines import DIMENSIONS
from gateway.costs.export.writers import ParquetMissingError
from gateway.costs.prices.exchange_rates import ExchangeRateError
from gateway.costs.reports.flat_table import FileFormat, report_file
from gateway.costs.reports.report import DEFAULT_BY, Question, report_text
from gateway.errors import FlorinError

router = APIRouter(route_class=Tagged)

ROWS = 10_000
_T = TypeVar("_T")
_MEDIA = {
    "application/json": "json",
    "text/csv": "csv",
    "application/vnd.apache.parquet": "parquet",
}


@router.get("/costs", responses={200: {"content": {media: {} for media in _MEDIA}}, 304: {}})
async def costs(
    *,
    request: Request,
    key: FinanceKey,
    state: StateDep,
    by: Annotated[str, Query(description=f"Comma-separated list of {', '.join(DIMENSIONS)}.")] = ",".join(
        DEFAULT_BY
    ),
    start: From = None,
    to: To = None,
    month: Month = None,
    tenant: Tenant = None,
    policy: Annotated[
        str | None, Query(description="How to allocate unused GPU time: none, proportional, even, fixed.")
    ] = None,
    shares: Annotated[
        str | None, Query(max_length=10_000, description="For fixed: `acme=60,bolt=40`.")
    ] = None,
    currency: Annotated[
        str | None,
        Query(
            pattern="^[A-Z]{3}$",
            description="Convert all amounts at the exchange rate of the end of the period; `exchange_rate` "
            "says which it was. Files have 15 decimal places. Default: the price book's.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        Query(ge=1, le=100_000, description=f"Maximum rows. Default: {ROWS} for JSON, all for files."),
    ] = None,
    after: After = None,
    form: Annotated[
        Literal["json", "csv", "parquet"] | None,
        Query(alias="format", description="Default: from the Accept header."),
    ] = None,
) -> Response:
    """Requests, tokens, GPU-time and cost, grouped; this month if no time is given. `rows` hold delivered
    usage; retry waste, headroom, start-up, idle time and corrections are separate, and together with the rows
    they sum to the `whole`. `cost` is an exact decimal, or null if a price is missing; `missing_prices` lists
    those. A whole month shows what is posted to it; any other time range shows its hours as known now.
    `complete` is false while records are still arriving in the ledger. A tenant's key sees its own rows."""
    dimensions = dimensions_of(by, DIMENSIONS)
    kind = form or preferred(request.headers.get("accept", ""), _MEDIA, "json")
    if policy is not None or shares is not None:
        only_staff(key)
    question = Question(
        period_of(start, to, month, state.clock.now()),
        dimensions,
        tenants_of(key, tenant),
        _policy(policy, shares),
        limit if limit or kind != "json" else ROWS,
        None if after is None else position(after, len(dimensions)),
    )
    flushed = await state.meter.flush()
    if kind == "json":
        report = ledger_process_of(state, key).run(
            report_text, question, now=state.clock.now(), currency=currency
        )
        text, beside = await _converted(report)
        beside["complete"] &= flushed
        beside["next"] = None if beside["next"] is None else token(beside["next"])
        text = f"{text[:-1]},{json.dumps(beside)[1:]}"
        return Response(text, media_type="application/json")
    made: FileFormat = "csv" if kind == "csv" else "parquet"
    report_ = ledger_process_of(state, key).run(
        report_file, question, made, now=state.clock.now(), currency=currency
    )
    return await _file(report_, made, flushed=flushed)


async def _converted(report: Awaitable[_T]) -> _T:
    try:
        return await report
    except ExchangeRateError as error:
        raise FlorinError("invalid_value", error.message, param=error.param) from error


def _policy(name: str | None, shares: str | None) -> AllocationPolicy | None:
    if name is None and shares is None:
        return None
    try:
        return policy_of(name or "fixed", shares)
    except PolicyError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


async def _file(
    report: Awaitable[tuple[bytes, dict[str, Any]]], kind: FileFormat, *, flushed: bool
) -> Response:
    try:
        content, beside = await _converted(report)
    except ParquetMissingError as error:
        raise FlorinError("invalid_value", str(error), param="format") from error
    media = next(media for media, name in _MEDIA.items() if name == kind)
    headers = {
        "x-florin-complete": "true" if beside["complete"] and flushed else "false",
        "x-florin-rows": str(beside["rows"]),
    }
    if beside["next"] is not None:
        headers["x-florin-next"] = token(beside["next"])
    return Response(content, media_type=media, headers=headers)
