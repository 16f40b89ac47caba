"""The upgrade to revision 0018: dismissals in quarantine, and rules that months closed before do not have."""

import pytest
from sqlalchemy import create_engine, text

from gateway.costs.periods import month_of
from gateway.metering.ledger import migrations
from gateway.metering.ledger.engine_hours import earlier_rules_before
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour

NOVEMBER = month_of("2026-11").start
POOL = {"engine": "gpu-a", "gpu_type": "H100", "gpu_count": 1, "region": "", "base_model": "b"}
MONTH = {
    "state": "closed", "first_batch": 0, "cutoff_batch": 0, "closing_at": 0, "closed_by": "x", "policy": "none",
    "document": "{}",
}  # fmt: skip


def put(connection, table, **row):
    columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


@pytest.fixture
def old(blank_url):
    """A database as revision 0014 left it: gpu-a became on demand within the first hour of November, after it
    had been spot; a price begins within the third hour."""
    engine = create_engine(blank_url)
    with engine.begin() as connection:
        migrations.upgrade(connection, "0014")
        content = f'{{"ended":{NOVEMBER},"id":"x"}}'
        put(connection, "quarantine", id="x", digest="y", content=content, recorded_at=1)
        put(connection, "periods", month="2026-10", **MONTH)
        for hour in (-1, 0, 1, 2):
            for name in ("gpu-a", "gpu-b"):
                put(connection, "engine_hours", **engine_hour(NOVEMBER // HOUR + hour, engine=name))
        for start, purchase in ((NOVEMBER - HOUR, "spot"), (NOVEMBER + HOUR // 2, "on_demand")):
            span = {"worker": "w", "phase": "up", "started": start, "seen": start + HOUR}
            put(connection, "engine_spans", **POOL, **span, purchase=purchase)
        price = {"gpu_type": "h100", "region": "", "purchase": "on_demand", "rate_micros": 1}
        since = NOVEMBER + 2 * HOUR + 1
        put(connection, "prices", **price, currency="USD", valid_from=since, recorded_at=0)
    engine.dispose()
    return blank_url


@pytest.mark.both_databases
def test_records_get_their_time_and_open_hours_that_new_rules_divide_otherwise_are_rolled_up_again(old):
    ledger = Ledger(old)
    with ledger.read() as connection:
        assert connection.execute(text("SELECT ended FROM quarantine")).scalar() == NOVEMBER
        assert earlier_rules_before(connection) == NOVEMBER
        marked = connection.execute(text("SELECT hour, engine FROM dirty_hours ORDER BY hour, engine")).all()
    ledger.close()
    assert [((hour - NOVEMBER) // HOUR, name) for hour, name in marked] == [
        (0, "gpu-a"), (2, "gpu-a"), (2, "gpu-b"),
    ]  # fmt: skip
