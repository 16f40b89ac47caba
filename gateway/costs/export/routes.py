"""A month's costs as a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from gateway.api.dependencies import FinanceKey, StateDep
from gateway.api.finance_requests import (
    Tenant,
    ledger_process_of,
    missing_price,
    month_of,
    only_staff,
    require_own_month,
    tenants_of,
)
from gateway.costs.export.columns import DEFAULT_FORMATS, Dataset, Format, Granularity
from gateway.costs.export.contract_commitments import export_commitments
from gateway.costs.export.files import MissingPriceError, Order, export
from gateway.costs.export.foreign import FOREIGN
from gateway.costs.export.spool import unwritable
from gateway.costs.export.writers import ParquetMissingError, TooLargeError
from gateway.costs.periods import month_of as whole_month
from gateway.costs.statement.charge_rows import export_charges
from gateway.dataplane.asgi import Receive, Scope, Send
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness_headers, refreshed
from gateway.operations.state import State
from gateway.tenants.directory import Key

router = APIRouter()

_CHUNK = 256 * 1024
_MAKE: Mapping[Dataset, Callable[..., int]] = {
    "infrastructure": export,
    "chargeback": export,
    "charges": export_charges,
    "commitments": export_commitments,
}


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}, "application/vnd.apache.parquet": {}}}},
)
async def export_month(
    *,
    key: FinanceKey,
    state: StateDep,
    month: Annotated[str, Query(description="`2026-11`.")],
    form: Annotated[
        Format | None,
        Query(
            alias="format",
            description="Default: focus-1.2; for charges csv, for commitments focus-1.4.",
        ),
    ] = None,
    dataset: Annotated[
        Dataset,
        Query(
            description="chargeback: the cost of tokens by tenant; infrastructure: that of each engine-hour "
            "and who used it; charges: what each tenant is charged, line by line of its statement; "
            "commitments: the terms of recorded commitments, as FOCUS's Contract Commitment dataset."
        ),
    ] = "chargeback",
    parquet: Annotated[bool, Query(description="FOCUS as Parquet instead of CSV.")] = False,
    tenant: Tenant = None,
    granularity: Annotated[Granularity, Query(description="A row for each hour or day (UTC).")] = "hourly",
) -> Response:
    """Export a month's costs as a file: FOCUS 1.2 or 1.4, the ledger's lines, or what Vantage and CloudZero
    import. Or what tenants are charged, as CSV or Parquet. A tenant's key gets its own chargeback or charges,
    without GPU-hours and GPU prices. All formats but the ledger's lines require all prices. The header
    `x-florin-rows` gives the number of rows; `x-florin-complete` is `false` while records are still arriving
    in the ledger."""
    kind: Format = form or DEFAULT_FORMATS.get(dataset, "focus-1.2")
    if dataset == "charges" and kind not in {"csv", "parquet"}:
        raise FlorinError("invalid_value", f"format: charges are csv or parquet, not {kind}.", param="format")
    if dataset == "commitments" and kind != "focus-1.4":
        raise FlorinError("invalid_value", f"format: commitments are focus-1.4, not {kind}.", param="format")
    if dataset in {"infrastructure", "commitments"}:
        only_staff(key)
    if kind in FOREIGN:
        only_staff(key)
        if parquet:
            raise FlorinError("invalid_value", f"parquet: {kind} files are CSV.", param="parquet")
    tenants = tenants_of(key, tenant)
    order = Order(
        month_of(month),
        kind,
        dataset,
        state.settings.issuer,
        parquet,
        tenants,
        granularity,
        key.own_tenant or "",
        state.clock.now(),
    )
    return _Download(state, key, order)


class _Download(Response):
    """Creates the file and sends it. The file is removed, however the response ends."""

    def __init__(self, state: State, key: Key, order: Order) -> None:
        self._state = state
        self._key = key
        self._order = order
        media = "application/vnd.apache.parquet" if order.as_parquet else "text/csv; charset=utf-8"
        super().__init__(media_type=media)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors before the first byte propagate and get the usual error response."""
        del scope, receive
        tenant = self._key.own_tenant is not None
        owner = f"tenant:{self._key.tenant}" if tenant else f"key:{self._key.id}"
        async with self._state.spool.made(owner, self._make, tenant=tenant) as spooled:
            self.headers["content-disposition"] = f'attachment; filename="{self._order.file_name}"'
            self.headers["content-length"] = str(spooled.size)
            self.headers["x-florin-rows"] = str(spooled.rows)
            start: dict[str, Any] = {"type": "http.response.start", "status": 200}
            await send({**start, "headers": self.raw_headers})
            while chunk := await asyncio.to_thread(spooled.file.read, _CHUNK):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _make(self, path: Path, most: int) -> int:
        ledger_process = ledger_process_of(self._state, self._key)
        month = whole_month(self._order.month)
        lacks = await refreshed(self._state, ledger_process, month, self._key.own_tenant)
        await require_own_month(self._state, self._key, self._order.month)
        self.headers.update(completeness_headers(self._state, lacks))
        try:
            return await ledger_process.run(_MAKE[self._order.dataset], self._order, path, most)
        except MissingPriceError as error:
            raise missing_price(error, self._key) from error
        except ParquetMissingError as error:
            raise FlorinError("invalid_value", str(error), param="format") from error
        except TooLargeError as error:
            raise FlorinError(
                "export_failed", f"The file exceeds the {most:,} bytes available now.", retry_after=60
            ) from error
        except OSError as error:
            raise unwritable(error) from error
