"""A ledger of the first release, brought up to date: nothing of it changes but what may."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, select, text

from gateway.costs.periods import iso, month_of
from gateway.metering.ledger import migrations
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, rollup_parts
from gateway.units import HOUR
from tests.unit.gateway.metering.make import record

OCTOBER, NOVEMBER = month_of("2026-10").start, month_of("2026-11").start
FIGURES = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "nano_gpu_hours",
    "weight_input", "weight_cached", "weight_output", "weight_other", "calibration",
)  # fmt: skip


@pytest.fixture
def old(blank_url):
    """A database as revision 0001 left it, with a closed month, an open one, and a record of each."""
    engine = create_engine(blank_url)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for number, hour in enumerate((OCTOBER, NOVEMBER, NOVEMBER + HOUR)):
            connection.execute(
                _rollup(tenant="acme" if number < 2 else ""), {"hour": hour, "posted": iso(hour)[:7]}
            )
        connection.execute(_rollup(tenant="acme", correction="true"), {"hour": OCTOBER, "posted": "2026-11"})
        connection.execute(
            text(
                "INSERT INTO periods (month, state, first_batch, cutoff_batch, closing_at, closed_by, policy) "
                "VALUES ('2026-10', 'closed', 0, 1, 1, 'x', 'none')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO usage_records (id, request_id, attempt, tenant, key_id, adapter, version, base_model, "
                "engine, gpu_type, gpu_count, dispatched, ended, prompt_tokens, completion_tokens, "
                "reasoning_tokens, n, usage_source, outcome, billable) VALUES "
                "(:id, 'req-1', 1, 'acme', 'key', 'acme/support', 'v1', 'base', 'gpu-a', 'H100', 1, :at, :at, "
                "10, 5, 0, 1, 'engine_final', 'ok', true)"
            ),
            {"id": record("req-1").id, "at": NOVEMBER},
        )
    engine.dispose()
    return blank_url


def _rollup(tenant, correction="false"):
    return text(
        "INSERT INTO rollups (posted, hour, piece, engine, gpu_type, gpu_count, region, purchase, bucket, "
        f"tenant, adapter, version, base_model, {', '.join(FIGURES)}, correction) VALUES (:posted, :hour, :hour, "
        f"'gpu-a', 'H100', 1, '', 'on_demand', 'usage', '{tenant}', '', '', 'base', "
        f"{', '.join('1' for _ in FIGURES)}, {correction})"
    )


def test_records_have_no_labels_and_the_same_one_again_changes_nothing(old):
    ledger = Ledger(old)
    [one] = ledger.usage(start=0, end=2**62)
    assert (one.end_user, one.tag, one.cost_centre) == (None, None, None)
    again = record("req-1", dispatched=NOVEMBER, ended=NOVEMBER, first_token=None, seq=one.seq, seen=one.seen)
    assert again == one
    assert ledger.insert([again]).duplicate == 1
    ledger.close()


def test_the_hours_of_customers_in_open_months_are_rolled_up_again_and_no_others(old):
    ledger = Ledger(old)
    with ledger.read() as connection:
        marked = connection.execute(select(dirty_hours.c.hour, dirty_hours.c.engine)).all()
        assert connection.execute(select(rollup_parts)).first() is None
    assert marked == [(NOVEMBER, "gpu-a")]
    ledger.close()
