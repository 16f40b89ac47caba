"""A month's costs as a file."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gateway.api.deps import FinanceKey, State, StateDep
from gateway.api.finance.common import Tenant, only_staff, tenants_of
from gateway.costs.export.columns import Dataset, Format
from gateway.costs.export.files import MissingPriceError, Order, export
from gateway.costs.export.writers import ParquetMissingError
from gateway.costs.periods import PeriodError, month
from gateway.costs.rolling import roll
from gateway.errors import FlorinError

router = APIRouter()

_CHUNK = 256 * 1024
_ROLL_SECONDS = 10.0


@router.get("/export", response_class=StreamingResponse)
async def export_month(
    *,
    key: FinanceKey,
    state: StateDep,
    whole_month: Annotated[str, Query(alias="month", description="`2026-11`.")],
    kind: Annotated[Format, Query(alias="format")] = "focus-1.2",
    dataset: Annotated[
        Dataset,
        Query(description="chargeback: tokens by tenant; infrastructure: each engine-hour and who used it."),
    ] = "chargeback",
    parquet: Annotated[bool, Query(description="FOCUS as Parquet instead of CSV.")] = False,
    tenant: Tenant = None,
) -> StreamingResponse:
    """One month in one file: FOCUS 1.2 or 1.4, or the plain lines of the ledger. A tenant's key gets its own
    chargeback. A FOCUS file is refused while a price is missing. `x-florin-rows`: how many rows it has."""
    if dataset == "infrastructure":
        only_staff(key)
    order = Order(whole_month, kind, dataset, state.settings.issuer, parquet, tenants_of(key, tenant))
    try:
        month(whole_month)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
    await state.meter.flush()
    await state.books.run(roll, time.time_ns() // 1000, patience=_ROLL_SECONDS)
    file, rows = await _made(state, order)
    headers = {
        "content-disposition": f'attachment; filename="{order.file_name}"',
        "content-length": str(os.fstat(file.fileno()).st_size),
        "x-florin-rows": str(rows),
    }
    media = "application/vnd.apache.parquet" if order.as_parquet else "text/csv; charset=utf-8"
    return StreamingResponse(_chunks(file), media_type=media, headers=headers)


async def _made(state: State, order: Order) -> tuple[BinaryIO, int]:
    """The file, open and already without a name: however this ends, nothing is left on the disk."""
    handle, name = tempfile.mkstemp(prefix="florin-export-", dir=state.settings.state_dir)
    path, file = Path(name), os.fdopen(handle, "rb")
    try:
        rows = await state.books.run(export, order, path)
    except MissingPriceError as error:
        file.close()
        raise FlorinError("missing_price", str(error)) from error
    except ParquetMissingError as error:
        file.close()
        raise FlorinError("invalid_value", str(error), param="format") from error
    except BaseException:
        file.close()
        raise
    finally:
        _remove(path)
    return file, rows


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
