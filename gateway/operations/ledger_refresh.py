"""Bring the ledger up to date before it is read, and say what its figures lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import Period
from gateway.costs.reconciliation.completeness import quarantined_in
from gateway.costs.rollups.rollup import roll
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.schemas.finance import LACKS, IncompleteReason, Lack

ROLL_SECONDS = 10.0
"""Longest roll-up before an answer; maintenance continues it."""


def lacking(*, flushed: bool, rolled: bool = True) -> tuple[Lack, ...]:
    """`flushed`: this worker's records are in the ledger. `rolled`: all engine-hours are summed up."""
    unshipped: tuple[Lack, ...] = () if flushed else ("records_unshipped",)
    return unshipped if rolled else (*unshipped, "hours_stale")


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


async def refresh(state: State, process: LedgerProcess, within: Period | None = None) -> tuple[Lack, ...]:
    """Ship this worker's records and roll up what is new. Return what figures then lack: all of it, if that
    takes longer than its time, and records of the period `within` that are in quarantine. Raises
    LedgerUnavailableError."""
    flushed = await state.meter.flush()
    rolled = await process.run(roll, state.clock.now(), patience=ROLL_SECONDS)
    lacks = lacking(flushed=flushed, rolled=rolled.pending == 0)
    quarantined = 0 if within is None else await process.run(quarantined_in, within)
    return (*lacks, "records_quarantined") if quarantined else lacks
