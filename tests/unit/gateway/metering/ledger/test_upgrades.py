"""What upgrades convert: a ledger of the first release with a closed and an open month, which went on at revision
0014. Nothing of it changes but what may. (0014 itself: test_compact_records.py; closed months:
test_upgrade_of_closed_months.py; the chain: tests/unit/gateway/costs/verification/test_chain_check.py.)"""

import pytest
from sqlalchemy import create_engine, text

from gateway.costs.periods import iso, month_of
from gateway.metering.ledger import migrations
from gateway.metering.ledger.engine_hours import earlier_rules_before
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR
from tests.support.ledger_rows import POOL, engine_hour
from tests.unit.gateway.metering.make import record

OCTOBER, NOVEMBER = month_of("2026-10").start, month_of("2026-11").start
LATER = NOVEMBER + 5 * HOUR
MONTH = {
    "month": "2026-10", "state": "closed", "first_batch": 0, "cutoff_batch": 0, "closing_at": 0, "closed_by": "x",
    "policy": "none", "document": "{}",
}  # fmt: skip
FIGURES = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "nano_gpu_hours",
    "weight_input", "weight_cached", "weight_output", "weight_other", "calibration",
)  # fmt: skip
ONE = record("req-1", dispatched=LATER, first_token=None, ended=LATER)
PRICE = {"gpu_type": "h100", "region": "", "purchase": "on_demand", "currency": "USD", "recorded_at": 0}


def put(connection, table, **row):
    columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


def rolled_up(connection, hour, tenant, *, posted="", correction=False):
    row = {
        **POOL, "posted": posted or iso(hour)[:7], "hour": hour, "piece": hour, "bucket": "usage", "tenant": tenant,
        "adapter": "", "version": "", "correction": correction, **dict.fromkeys(FIGURES, 1),
    }  # fmt: skip
    put(connection, "rollups", **row)


@pytest.fixture
def old(blank_url):
    """Within the first hour of November, gpu-a became on demand, after it had been spot. A price begins within the
    third hour."""
    engine = create_engine(blank_url)
    with engine.begin() as connection:
        migrations.upgrade(connection, "0001")
        rolled_up(connection, OCTOBER, "acme")
        rolled_up(connection, OCTOBER, "acme", posted="2026-11", correction=True)
        rolled_up(connection, LATER, "acme")
        rolled_up(connection, LATER + HOUR, "")
        put(connection, "periods", **MONTH)
        new = {"end_user", "tag", "cost_centre", "service_tier", "task", "marks", "seq", "seen"}
        put(connection, "usage_records", **{n: v for n, v in ONE._asdict().items() if n not in new})
        put(connection, "prices", **PRICE, rate_micros=7, valid_from=0, valid_to=OCTOBER)
        migrations.upgrade(connection, "0014")
        put(
            connection,
            "quarantine",
            id="x",
            digest="y",
            content=f'{{"ended":{NOVEMBER},"id":"x"}}',
            recorded_at=1,
        )
        for hour in (-1, 0, 1, 2):
            for name in ("gpu-a", "gpu-b"):
                put(connection, "engine_hours", **engine_hour(NOVEMBER // HOUR + hour, engine=name))
        for start, purchase in ((NOVEMBER - HOUR, "spot"), (NOVEMBER + HOUR // 2, "on_demand")):
            span = {
                "worker": "w",
                "phase": "up",
                "started": start,
                "seen": start + HOUR,
                "purchase": purchase,
            }
            put(connection, "engine_spans", **POOL | span)
        put(connection, "prices", **PRICE, rate_micros=1, valid_from=NOVEMBER + 2 * HOUR + 1)
    engine.dispose()
    return blank_url


@pytest.mark.both_databases
def test_what_may_change_is_rolled_up_again_and_nothing_else_changes(old, caplog):
    ledger = Ledger(old)
    with caplog.at_level("INFO", "florin.metering"), ledger.read() as connection:

        def rows(query):
            return [tuple(row) for row in connection.execute(text(query))]

        assert rows("SELECT ended FROM quarantine") == [(NOVEMBER,)]
        assert earlier_rules_before(connection) == NOVEMBER
        assert rows("SELECT rate_micros, valid_to, withdrawn FROM prices ORDER BY valid_from") == [
            (7, OCTOBER, False), (1, None, False),
        ]  # fmt: skip
        marked = rows("SELECT hour, engine FROM dirty_hours ORDER BY hour, engine")
        assert [((hour - NOVEMBER) // HOUR, name) for hour, name in marked] == [
            (0, "gpu-a"), (2, "gpu-a"), (2, "gpu-b"), (5, "gpu-a"),
        ]  # fmt: skip
        assert rows("SELECT day FROM unsummed_days ORDER BY day") == [(OCTOBER,), (NOVEMBER,)]
    assert f"Ledger: schema upgraded from 0014 to {migrations.HEAD}." in caplog.messages
    [stored] = ledger.usage(start=0, end=2**62)
    assert stored._replace(seq=0, seen=0) == ONE._replace(seq=0, seen=0)
    assert ledger.insert([stored]).duplicate == 1
    ledger.close()
