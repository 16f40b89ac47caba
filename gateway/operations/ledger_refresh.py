"""Bring the ledger up to date before it is read, and say what its figures lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import Period
from gateway.costs.reconciliation.completeness import left_out
from gateway.costs.rollups.rollup import roll
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.finance import LACKS, IncompleteReason, Lack

ROLL_SECONDS = 10.0
"""Longest roll-up before an answer; maintenance continues it."""


async def lacking(
    process: LedgerProcess,
    within: Period | None,
    *,
    flushed: bool,
    rolled: bool = True,
    tenant: str | None = None,
    request_id: str | None = None,
) -> tuple[Lack, ...]:
    """What figures about a period lack. `flushed`: this worker's records are in the ledger. `rolled`: all
    engine-hours are summed up. `tenant`: whose key asks: it hears of no other's records. `request_id`: about
    this request, with no period. Raises LedgerUnavailableError."""
    fields = {"tenant": tenant, "request_id": request_id}
    quarantined, set_aside = await process.run(
        left_out, within, {name: value for name, value in fields.items() if value is not None}
    )
    holds: Mapping[Lack, bool] = {
        "records_unshipped": not flushed,
        "hours_stale": not rolled,
        "hours_set_aside": set_aside,
        "records_quarantined": quarantined,
    }
    return tuple(lack for lack, does_hold in holds.items() if does_hold)


def completeness(state: State, lacks: Sequence[Lack], report: Mapping[str, Any] = {}) -> Json:
    """What an answer says of its figures: whether they are `complete`, the `reasons` why not, and `missing`
    if other gateways' records are in another ledger. `report`: what it lists itself is among the reasons."""
    codes = {
        *lacks,
        *(("ledgers_differ",) if state.gateways.missing else ()),
        *(("hours_set_aside",) if report.get("set_aside") else ()),
        *(("prices_missing",) if report.get("missing_prices") else ()),
    }
    reasons = [IncompleteReason.about(code).model_dump() for code in LACKS if code in codes]
    shown: Json = {"complete": not reasons, "reasons": reasons}
    return shown | ({"missing": state.gateways.missing} if state.gateways.missing else {})


def completeness_headers(
    state: State, lacks: Sequence[Lack], report: Mapping[str, Any] = {}
) -> dict[str, str]:
    """The same for a file: the codes of the reasons."""
    shown = completeness(state, lacks, report)
    codes = ", ".join(reason["code"] for reason in shown["reasons"])
    return {
        "x-florin-complete": "true" if shown["complete"] else "false",
        **({"x-florin-incomplete": codes} if codes else {}),
        **({"x-florin-missing": shown["missing"]} if "missing" in shown else {}),
    }


async def refresh(state: State, process: LedgerProcess) -> tuple[bool, bool]:
    """Ship this worker's records and roll up what is new. Return which of both was done in its time. Raises
    LedgerUnavailableError."""
    flushed = await state.meter.flush()
    rolled = await process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    return flushed, rolled.pending == 0


async def refreshed(
    state: State, process: LedgerProcess, within: Period, tenant: str | None = None
) -> tuple[Lack, ...]:
    """`refresh`, and what figures about the period then lack. `tenant`: as for `lacking`. Raises
    LedgerUnavailableError."""
    flushed, rolled = await refresh(state, process)
    return await lacking(process, within, flushed=flushed, rolled=rolled, tenant=tenant)
