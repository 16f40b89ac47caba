"""Usage and cost, grouped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance_requests import (
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
    names_reused_in,
    only_staff,
    owner_of,
    period_of,
    position,
    preferred,
    token,
)
from gateway.costs.closing.operations import asked_policy
from gateway.costs.cost_lines import DIMENSIONS
from gateway.costs.export.writers import ParquetMissingError
from gateway.costs.periods import local_time, zone
from gateway.costs.reports.customer_report import HIDDEN_DIMENSIONS, customer_file, customer_text
from gateway.costs.reports.flat_table import FileFormat, report_file
from gateway.costs.reports.report import DEFAULT_BY, Question, report_text
from gateway.costs.reports.schemas.costs import CostReport
from gateway.costs.rollups.parts import DIMENSIONS as PART_DIMENSIONS
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness, completeness_headers, lacking
from gateway.operations.state import State
from gateway.schemas.finance import Currency, Lack
from gateway.tenants.directory import Key

router = APIRouter(route_class=Tagged)

ROWS = 10_000
_T = TypeVar("_T")
_MEDIA = {
    "application/json": "json",
    "text/csv": "csv",
    "application/vnd.apache.parquet": "parquet",
}


@router.get(
    "/costs", response_model=CostReport, responses={200: {"content": {m: {} for m in _MEDIA}}, 304: {}}
)
async def costs(
    *,
    request: Request,
    key: FinanceKey,
    state: StateDep,
    by: Annotated[
        str,
        Query(
            description=f"Comma-separated list of {', '.join(DIMENSIONS)}; two of the last "
            f"{len(PART_DIMENSIONS)} at most."
        ),
    ] = ",".join(DEFAULT_BY),
    start: From = None,
    to: To = None,
    month: Month = None,
    timezone: Zone = "UTC",
    tenant: Tenant = None,
    policy: Annotated[
        str | None,
        Query(
            description="How to allocate unused GPU time: none, proportional, even, fixed. Default: as each "
            "month was closed, or by the standing policy."
        ),
    ] = None,
    shares: Annotated[
        str | None,
        Query(max_length=10_000, description="For fixed: `acme=60,bolt=40`, or `acme=60%,bolt=40%`."),
    ] = None,
    currency: Annotated[
        Currency | None,
        Query(
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
    """Requests, tokens, GPU time and cost, grouped; this month if no time is given. A tenant's key sees its
    own rows since it was added, without GPU time and engines."""
    dimensions = dimensions_of(by, _dimensions_for(key))
    kind = form or preferred(request.headers.get("accept", ""), _MEDIA, "json")
    if policy is not None or shares is not None:
        only_staff(key)
    tz = zone(timezone)
    within = period_of(start, to, month, state.clock.now(), tz)
    local = local_time(within, tz)
    question = Question(
        local.within if local is not None and local.cuts else within,
        dimensions,
        await known_tenants_of(state, key, tenant),
        await asked_policy(state, policy, shares),
        limit if limit or kind != "json" else ROWS,
        None if after is None else position(after, len(dimensions)),
        local,
    )
    flushed = await state.meter.flush()
    if kind == "json":
        owner = owner_of(state, key)
        make = report_text if owner is None else partial(customer_text, owner=owner)
        text, beside = await _run(state, key, make, question, currency=currency)
        lacks = await _lacking(state, key, question, flushed=flushed, rolled=beside["complete"])
        beside |= completeness(state, lacks, beside.pop("lists"))
        beside["next"] = None if beside["next"] is None else token(beside["next"])
        if (keys := beside.pop("keys", None)) is not None:
            beside["key_labels"] = _labels(state, keys)
        if owner is None:
            beside["names_reused"] = await names_reused_in(state, question.period)
        text = f"{text[:-1]},{json.dumps(beside)[1:]}"
        return Response(text, media_type="application/json")
    file_format: FileFormat = "csv" if kind == "csv" else "parquet"
    return await _file(state, key, question, file_format, currency, flushed=flushed)


async def _run(state: State, key: Key, make: Callable[..., _T], *args: object, currency: str | None) -> _T:
    return await ledger_process_of(state, key).run(make, *args, now=state.clock.now(), currency=currency)


async def _lacking(
    state: State, key: Key, question: Question, *, flushed: bool, rolled: bool
) -> tuple[Lack, ...]:
    process = ledger_process_of(state, key)
    return await lacking(process, question.period, flushed=flushed, rolled=rolled, tenant=key.own_tenant)


def _labels(state: State, keys: Sequence[str]) -> dict[str, str]:
    """What the keys of a page are called by their owners, as far as they still exist and have a name."""
    known = ((name, state.directory.keys.get(name)) for name in keys)
    return {name: key.label for name, key in known if key is not None and key.label}


def _dimensions_for(key: Key) -> tuple[str, ...]:
    """Customers do not see which engine served them."""
    if key.own_tenant is None:
        return DIMENSIONS
    return tuple(name for name in DIMENSIONS if name not in HIDDEN_DIMENSIONS)


async def _file(
    state: State, key: Key, question: Question, kind: FileFormat, currency: str | None, *, flushed: bool
) -> Response:
    make: Callable[..., tuple[bytes, dict[str, Any]]]
    owner = owner_of(state, key)
    make = report_file if owner is None else partial(customer_file, owner=owner)
    try:
        content, beside = await _run(state, key, make, question, kind, currency=currency)
    except ParquetMissingError as error:
        raise FlorinError("invalid_value", str(error), param="format") from error
    media = next(media for media, name in _MEDIA.items() if name == kind)
    lacks = await _lacking(state, key, question, flushed=flushed, rolled=beside["complete"])
    headers = {
        **completeness_headers(state, lacks, beside["lists"]),
        "x-florin-rows": str(beside["rows"]),
    }
    if beside["next"] is not None:
        headers["x-florin-next"] = token(beside["next"])
    return Response(content, media_type=media, headers=headers)
