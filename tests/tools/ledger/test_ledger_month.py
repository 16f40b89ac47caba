"""The load test's synthetic month: the same each time, and what a shipper would have left."""

from itertools import pairwise

from sqlalchemy import func, select

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, ledger_state, usage_records
from gateway.metering.records import UsageRecord, record_id
from gateway.units import HOUR
from loadtests.ledger.load import load
from loadtests.ledger.month import COLUMNS, ENGINES, HOURS, START, Month

RECORDS = 3_000


def rows(count=RECORDS):
    month = Month(count)
    return month, [dict(zip(COLUMNS, row, strict=True)) for hour in month.hours() for row in hour]


def test_a_month_as_shippers_would_have_left_it():
    month, made = rows()
    assert len(made) == month.made == RECORDS
    assert [r["batch"] for r in made] == [1 + n // 500 for n in range(RECORDS)]
    assert all(a["ended"] <= b["ended"] for a, b in pairwise(made))
    assert all(START <= r["dispatched"] <= r["ended"] < START + HOURS * HOUR for r in made)
    assert all(r["id"] == record_id(r["request_id"], 1) for r in made)
    assert all((r["cached_tokens"] or 0) <= r["prompt_tokens"] for r in made)
    assert len({r["tenant"] for r in made}) > 200
    assert {r["outcome"] for r in made} == {"ok", "client_abort", "failover", "engine_error", "rejected"}
    touched = {
        (hour, r["engine"], r["gpu_type"], r["gpu_count"])
        for r in made
        for hour in range(r["dispatched"] // HOUR * HOUR, r["ended"] + 1, HOUR)
    }
    assert month.touched == touched


def test_it_goes_into_a_ledger_whole(ledger_url):
    seen = []
    load(ledger_url, RECORDS, seen.append)
    ledger = Ledger(ledger_url)
    month, made = rows()
    with ledger.read() as connection:
        batch = connection.execute(
            select(ledger_state.c.value).where(ledger_state.c.name == "batch")
        ).scalar()
        marks = connection.execute(select(func.count()).select_from(dirty_hours)).scalar()
        count = connection.execute(select(func.count()).select_from(usage_records)).scalar()
    rejected = {pool for pool in month.touched if not pool[1]}
    assert (batch, count, marks) == (6, RECORDS, ENGINES * HOURS + len(rejected))
    assert seen[-1] == RECORDS
    first = {name: value for name, value in made[0].items() if name != "batch"}
    assert ledger.usage(start=0, end=2**62, limit=1)[0] == UsageRecord(**first)
    ledger.close()
