"""Calibrations: kept from a whole hour on, never edited, never reaching into a closed month."""

import pytest
from sqlalchemy import select

from gateway.costs.calibration.fit import TERMS
from gateway.costs.calibration.store import CalibrationConflictError, add_calibration, list_calibrations
from gateway.costs.periods import month_of
from gateway.metering.ledger.schema import dirty_hours, engine_hours
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, mark_closed, put

NOW = month_of("2026-11").start + 5 * HOUR + 123


def add(ledger, **changes):
    given = {
        "gpu_type": "H100", "base_model": "base", "engine_version": "0.32.0", "valid_from": None,
        "weights_ps": dict.fromkeys(TERMS, 7), "document": {"fit": {"samples": 9}}, "now": NOW,
    }  # fmt: skip
    return add_calibration(ledger, **given | changes)


def test_it_holds_from_the_present_hour_and_is_read_back(ledger):
    added = add(ledger)
    assert added.valid_from == NOW - NOW % HOUR
    assert list_calibrations(ledger) == [added]
    assert (added.prefill_ps, added.document) == (7, {"fit": {"samples": 9}})


def test_hours_from_then_on_are_rolled_up_anew_and_no_others(ledger):
    hour = NOW // HOUR
    put(ledger, engine_hours, *(engine_hour(hour + n) for n in (-1, 0, 1)), engine_hour(hour, gpu_type="L40"))
    put(ledger, engine_hours, engine_hour(hour + 1, gpu_type="B200", base_model="other"))
    add(ledger)
    with ledger.read() as connection:
        marked = connection.execute(select(dirty_hours.c.hour, dirty_hours.c.gpu_type)).all()
    assert sorted((at // HOUR, gpu_type) for at, gpu_type in marked) == [(hour, "H100"), (hour + 1, "H100")]


def test_the_same_hour_again_is_refused_and_another_fleet_is_not(ledger):
    add(ledger)
    with pytest.raises(CalibrationConflictError, match="never edited"):
        add(ledger, weights_ps=dict.fromkeys(TERMS, 8))
    add(ledger, base_model="other")
    add(ledger, valid_from=NOW + HOUR)
    assert len(list_calibrations(ledger)) == 3


def test_a_closed_month_is_out_of_reach(ledger):
    mark_closed(ledger, "2026-10")
    with pytest.raises(CalibrationConflictError, match="2026-10 is closed"):
        add(ledger, valid_from=month_of("2026-10").end - 1)
    add(ledger, valid_from=month_of("2026-11").start)
