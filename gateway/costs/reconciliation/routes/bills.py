"""The GPU provider's bills: import, list, remove."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged
from gateway.costs.reconciliation.bill_files import MAX_BYTES, BillFormat
from gateway.costs.reconciliation.bills import list_bills
from gateway.costs.reconciliation.operations import bills
from gateway.costs.reconciliation.schemas.bills import Bill, ImportedBill, RemovedBill
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.schemas.base import Listed

router = APIRouter(route_class=Tagged)

_PIECE = 1024 * 1024

Pairs = Annotated[list[str], Query(max_length=100)]


@router.post("/bills", status_code=201)
async def add(
    *,
    request: Request,
    response: Response,
    key: StaffKey,
    state: StateDep,
    file_name: Annotated[str, Query(max_length=200, description="Shown in listings.")] = "",
    format_: Annotated[
        Literal["csv", "focus", "aws"] | None,
        Query(alias="format", description="Default: detected from the header."),
    ] = None,
    map_: Annotated[
        Pairs, Query(alias="map", description="`field=Column`, or `field=Column.key` of a JSON column.")
    ] = [],  # noqa: B006  # FastAPI reads it; it is never modified
    rename: Annotated[
        Pairs, Query(description="`field:theirs=ours`, for example `gpu_type:p5.48xlarge=H100`.")
    ] = [],  # noqa: B006  # as above
    cost: Annotated[
        Literal["billed", "effective"], Query(description="FOCUS: BilledCost or EffectiveCost.")
    ] = "billed",
    decimal: Annotated[
        Literal["point", "comma"], Query(description="`comma`: numbers are written like 1.234,56.")
    ] = "point",
    end: Annotated[
        Literal["exclusive", "inclusive"],
        Query(description="`inclusive`: an end of 2026-10-31 includes that day."),
    ] = "exclusive",
    gpus_only: Annotated[
        bool, Query(description="Leave out taxes, credits and fees that name no GPU type.")
    ] = False,
    skip_bad: Annotated[bool, Query(description="Import the valid lines and report the others.")] = False,
) -> ImportedBill:
    """Import a bill; the body is the file, with commas, semicolons or tabs. Returns 201, or 200 if all lines
    were imported before. Nothing is imported unless every line is valid; the error has a finding for each
    mistake, with the number of lines that have it."""
    reading = BillFormat(
        format=format_ or "",
        columns=dict(_pair("map", text) for text in map_),
        renames={_field(left): right for left, right in (_pair("rename", text) for text in rename)},
        effective=cost == "effective",
        decimal_comma=decimal == "comma",
        inclusive_ends=end == "inclusive",
        gpus_only=gpus_only,
    )
    with tempfile.NamedTemporaryFile(prefix="florin-bill-") as file:
        await _receive(request, file)
        imported = await bills.add(
            state, file.name, file_name=file_name, reading=reading, skip_bad=skip_bad, actor=actor_of(key)
        )
    if not imported["new"]:
        response.status_code = 200
    return ImportedBill.read(imported)


@router.get("/bills")
async def show(_: StaffKey, state: StateDep) -> Listed[Bill]:
    """List imported bills, newest first."""
    return Listed[Bill].read({"data": await state.ledger_process.run(list_bills)})


@router.delete("/bills/{source}")
async def remove(
    key: StaffKey,
    state: StateDep,
    source: Annotated[
        str, Path(pattern="^[0-9a-f]{1,64}$", description="SHA-256 of the file, or a prefix of it.")
    ],
) -> RemovedBill:
    """Remove an import and its lines."""
    return RemovedBill.read(await bills.remove(state, source, actor=actor_of(key)))


async def _receive(request: Request, file: Any) -> None:
    """Write the body to disk in chunks. Raises FlorinError beyond MAX_BYTES, without reading the rest."""
    size, piece = 0, bytearray()
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BYTES:
            raise FlorinError(
                "body_too_large", f"A bill may have at most {MAX_BYTES:,} bytes: split the file."
            )
        piece += chunk
        if len(piece) >= _PIECE:
            await asyncio.to_thread(file.write, bytes(piece))
            piece.clear()
    await asyncio.to_thread(file.write, bytes(piece))
    await asyncio.to_thread(file.flush)


def _pair(param: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left or not right:
        raise FlorinError("invalid_value", f"{param}: {text[:80]!r} is not NAME=VALUE.", param=param)
    return left, right


def _field(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise FlorinError("invalid_value", f"rename: {text[:80]!r} is not FIELD:THEIRS.", param="rename")
    return name, value
