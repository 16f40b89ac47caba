"""Usage and cost, grouped."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance.common import (
    After,
    From,
    Month,
    Tagged,
    Tenant,
    To,
    Zone,
    dimensions_of,
    known_tenants_of,
    ledger_process_of,
    local_time_of,
    only_staff,
    period_of,
    position,
    preferred,
    token,
    zone_of,
)
from gateway.costs.allocation import AllocationPolicy, PolicyError, policy_of
from gateway.costs.cost_lines import DIMENSIONS
from gateway.costs.export.writers import ParquetMissingError
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.reports.flat_table import FileFormat, report_file
from gateway.costs.reports.report import DEFAULT_BY, Question, report_text
from gateway.errors import FlorinError

router = APIRouter(route_class=Tagged)

ROWS = 10_000
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
    timezone: Zone = "UTC",
    tenant: Tenant = None,
    policy: Annotated[
        str | None, Query(description="How to allocate unused GPU time: none, proportional, even, fixed.")
    ] = None,
    shares: Annotated[
        str | None, Query(max_length=10_000, description="For fixed: `acme=60,bolt=40`.")
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
    those. A whole month of UTC shows what is posted to it; any other time range, and every
    range in a `timezone`, shows its hours as known now. `day` is a day of the timezone, `hour` is UTC.
    `complete` is false while records are still arriving in the ledger. A tenant's key sees its own rows."""
    dimensions = dimensions_of(by, DIMENSIONS)
    kind = form or preferred(request.headers.get("accept", ""), _MEDIA, "json")
    if policy is not None or shares is not None:
        only_staff(key)
    at = zone_of(timezone)
    within = period_of(start, to, month, state.clock.now(), at)
    question = Question(
        within,
        dimensions,
        await known_tenants_of(state, key, tenant),
        _policy(policy, shares),
        limit if limit or kind != "json" else ROWS,
        None if after is None else position(after, len(dimensions)),
        local_time_of(within, at),
    )
    flushed = await state.meter.flush()
    if kind == "json":
        text, beside = await ledger_process_of(state, key).run(report_text, question, now=state.clock.now())
        beside["complete"] &= flushed
        beside["next"] = None if beside["next"] is None else token(beside["next"])
        text = f"{text[:-1]},{json.dumps(beside)[1:]}"
        return Response(text, media_type="application/json")
    made: FileFormat = "csv" if kind == "csv" else "parquet"
    return await _file(ledger_process_of(state, key), question, made, flushed=flushed, now=state.clock.now())


def _policy(name: str | None, shares: str | None) -> AllocationPolicy | None:
    if name is None and shares is None:
        return None
    try:
        return policy_of(name or "fixed", shares)
    except PolicyError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


async def _file(
    ledger_process: LedgerProcess, question: Question, kind: FileFormat, *, flushed: bool, now: int
) -> Response:
    try:
        content, beside = await ledger_process.run(report_file, question, kind, now=now)
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
