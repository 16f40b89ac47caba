"""The ledger's chain: its anchor and its verification."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import StringConstraints

from gateway.api.dependencies import StaffKey, StateDep
from gateway.api.finance_requests import Tagged
from gateway.costs.closing import operations as closing
from gateway.costs.closing.routes import kept_alive
from gateway.costs.closing.schemas import Anchor, ChainVerification
from gateway.costs.periods import iso
from gateway.costs.verification.chain_check import MOST_ANCHORS, anchor_of, anchors_of, chain_verified

router = APIRouter(prefix="/chain", route_class=Tagged)

AnchorText = Annotated[str, StringConstraints(pattern=r"^\d{1,18}:([0-9a-f]{64})?$")]


@router.get("")
async def anchor(_: StaffKey, state: StateDep) -> Anchor:
    """The last entry of the books' chain. Record it out of reach of those who can write to the ledger's
    database; `verify` later says whether everything before it is unchanged."""
    last = await state.ledger_process.run(anchor_of)
    return Anchor(entries=last.entries, hash=last.hash, exported_at=iso(state.clock.now()))


@router.get("/verify")
async def verify_chain(
    _: StaffKey,
    state: StateDep,
    *,
    anchor: Annotated[
        list[AnchorText] | None,
        Query(max_length=MOST_ANCHORS, description="`entries:hash` of an anchor; any number of them."),
    ] = None,
) -> ChainVerification:
    """Compare the books with the chain of what was written to them: closed months, invoices, bills, what was
    accepted and trued up, prices and rates, retention, and the audit log. Reads no usage records. While it
    runs, spaces are sent before the JSON to keep the connection alive."""
    task = asyncio.create_task(state.ledger_process.aside().run(chain_verified, anchors_of(anchor or ())))
    if await closing.finished(task):
        return ChainVerification.model_validate(task.result())
    unverified = {"entries": 0, "hash": ""}
    return StreamingResponse(kept_alive(unverified, task), media_type="application/json")  # type: ignore[return-value]  # the same JSON, later
