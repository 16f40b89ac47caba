"""Calibrations: kept from a whole hour on, never edited, never reaching into a closed month."""

import pytest
from sqlalchemy import insert, select

from gateway.costs.calibration.fit import TERMS
from gateway.costs.calibration.store import CalibrationConflictError, add_calibration, list_calibrations
from gateway.costs.periods import HOUR, month
from gateway.metering.ledger.schema import dirty_hours, engine_hours, periods

NOW = month("2026-11").start + 5 * HOUR + 123


def add(ledger, **changes):
    given = {
        "gpu_type": "H100",
        "base_model": "base",
        "engine_version": "0.32.0",
        "valid_from": None,
        "weights_ps": dict.fromkeys(TERMS, 7),
        "document": {"fit": {"samples": 9}},
        "now": NOW,
    }
    return add_calibration(ledger, **given | changes)


def pool(hour, *, gpu_type="H100", base="base"):
    return {
        "hour": hour, "engine": "e1", "gpu_type": gpu_type, "gpu_count": 1, "region": "",
        "purchase": "on_demand", "base_model": base, "provisioned_us": 0, "startup_us": 0, "busy_us": 0,
        "nano_gpu_hours": 0, "records": 0, "calibration": 0,
    }  # fmt: skip


def test_it_holds_from_the_present_hour_and_is_read_back(ledger):
    made = add(ledger)
    assert made.valid_from == NOW - NOW % HOUR
    assert list_calibrations(ledger) == [made]
    assert made.json()["prefill_ps"] == 7
    assert made.json()["fit"] == {"samples": 9}


def test_hours_from_then_on_are_rolled_up_anew_and_no_others(ledger):
    hour = NOW - NOW % HOUR
    with ledger.write() as connection:
        rows = [
            pool(hour - HOUR), pool(hour), pool(hour + HOUR), pool(hour, gpu_type="L40"),
            pool(hour + HOUR, gpu_type="B200", base="other"),
        ]  # fmt: skip
        connection.execute(insert(engine_hours), rows)
    add(ledger)
    with ledger.read() as connection:
        marked = connection.execute(select(dirty_hours.c.hour, dirty_hours.c.gpu_type)).all()
    assert sorted(tuple(row) for row in marked) == [(hour, "H100"), (hour + HOUR, "H100")]


def test_the_same_hour_again_is_refused_and_another_fleet_is_not(ledger):
    add(ledger)
    with pytest.raises(CalibrationConflictError, match="never edited"):
        add(ledger, weights_ps=dict.fromkeys(TERMS, 8))
    add(ledger, base_model="other")
    add(ledger, valid_from=NOW + HOUR)
    assert len(list_calibrations(ledger)) == 3


def test_a_closed_month_is_out_of_reach(ledger):
    with ledger.write() as connection:
        closed = {
            "month": "2026-10", "state": "closed", "first_batch": 0, "cutoff_batch": 0, "closing_at": NOW,
            "closed_by": "op", "policy": "none",
        }  # fmt: skip
        connection.execute(insert(periods), [closed])
    with pytest.raises(CalibrationConflictError, match="2026-10 is closed"):
        add(ledger, valid_from=month("2026-10").end - 1)
    add(ledger, valid_from=month("2026-11").start)
