"""Calibrations in the ledger: append-only; each is valid from a whole hour on for its GPU type and base
model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import insert, select

from gateway.costs.calibration.fit import TERMS
from gateway.costs.periods import iso
from gateway.costs.prices.repricing import marked
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import calibrations as table
from gateway.metering.ledger.schema import dirty_hours, engine_hours, periods
from gateway.metering.ledger.sealed_months import check_months
from gateway.units import HOUR


class CalibrationConflictError(Exception):
    """The calibration would change a closed month, or another calibration from the same hour."""


@dataclass(frozen=True, slots=True)
class Calibration:
    id: int
    gpu_type: str
    base_model: str
    engine_version: str
    valid_from: int
    recorded_at: int
    prefill_ps: int
    cached_ps: int
    decode_ps: int
    kv_ps: int
    load_ps: int
    document: dict[str, Any]
    """Confidence intervals, quality of the fit, the samples."""


def list_calibrations(ledger: Ledger) -> list[Calibration]:
    """All calibrations, newest first. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        query = select(table).order_by(table.c.valid_from.desc(), table.c.id.desc())
        return [_calibration(row) for row in connection.execute(query).mappings()]


def add_calibration(
    ledger: Ledger,
    *,
    gpu_type: str,
    base_model: str,
    engine_version: str,
    valid_from: int | None,
    weights_ps: dict[str, int],
    document: dict[str, Any],
    now: int,
    actor: str = "",
) -> Calibration:
    """Store it and mark the hours from `valid_from` on (default: the current hour) to be rolled up again.
    `actor`: recorded in the audit log; empty to record nothing.

    Raises CalibrationConflictError, LedgerUnavailableError."""
    since = now if valid_from is None else valid_from
    since -= since % HOUR
    with ledger.write() as connection:
        next_batch(connection)  # like closing a month, so they run one after the other
        check_months(connection)
        closed = connection.execute(select(periods.c.month).order_by(periods.c.month.desc())).scalar()
        if closed is not None and iso(since)[:7] <= closed:
            raise CalibrationConflictError(f"{closed} is closed; a calibration cannot change it.")
        standing = select(table.c.id).where(
            table.c.gpu_type == gpu_type, table.c.base_model == base_model, table.c.valid_from == since
        )
        if connection.execute(standing).scalar() is not None:
            raise CalibrationConflictError(
                f"{gpu_type} with {base_model} has a calibration from {iso(since)} on, "
                "and they are never edited: give a later hour."
            )
        row: dict[str, Any] = {
            "gpu_type": gpu_type,
            "base_model": base_model,
            "engine_version": engine_version,
            "valid_from": since,
            "recorded_at": now,
            **{f"{term}_ps": weights_ps[term] for term in TERMS},
        }
        text = orjson.dumps(document).decode()
        inserted = connection.execute(insert(table).values(**row, document=text).returning(table))
        kept = _calibration(inserted.mappings().one())
        seal(connection, "calibration", gpu_type, base_model)
        pools = select(
            engine_hours.c.hour, engine_hours.c.engine, engine_hours.c.gpu_type, engine_hours.c.gpu_count
        )
        touched = pools.where(
            engine_hours.c.hour >= since,
            engine_hours.c.gpu_type == gpu_type,
            engine_hours.c.base_model == base_model,
        )
        waiting = marked(connection, gpu_type, dirty_hours.c.hour >= since)
        mark_dirty(connection, [*waiting, *(tuple(row) for row in connection.execute(touched))])
        details = {name: value for name, value in row.items() if name != "recorded_at"}
        record(connection, actor, "calibration.add", gpu_type, details, now)
        return kept


def _calibration(row: Any) -> Calibration:
    return Calibration(**{**row, "document": orjson.loads(row["document"])})
