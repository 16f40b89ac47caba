"""Excluding records of an engine-hour, with the ledger's functions run in this process."""

from types import SimpleNamespace

from sqlalchemy import update

from gateway.costs.periods import instant
from gateway.costs.set_aside.operations import entries, exclude_records
from gateway.metering.ledger.schema import usage_records
from gateway.units import HOUR
from tests.unit.gateway.metering.make import record

AT = "1970-01-05T04:00:00"


async def test_an_hour_whose_sums_remain_implausible_is_still_set_aside(ledger, monkeypatch):
    """Whichever way its time is written."""
    monkeypatch.setattr("gateway.costs.rollups.plausibility.MOST_TOKENS", 9 * 10**18)
    ledger.insert([record(name) for name in "ab"])
    with ledger.write() as connection:
        connection.execute(update(usage_records).values(prompt_tokens=10**18))

    async def run(function, *args, **kwargs):
        return function(ledger, *args, **kwargs)

    state = SimpleNamespace(
        ledger_process=SimpleNamespace(run=run), clock=SimpleNamespace(now=lambda: 10**4 * HOUR)
    )
    assert [(e["engine"], e["hour"]) for e in await entries(state)] == [("gpu-a", f"{AT}Z")]
    for written in (f"{AT}Z", f"{AT}+00:00", "1970-01-05T05:00:00+01:00"):
        hour = instant("hour", written)
        done = await exclude_records(state, "gpu-a", hour, everything=False, actor="key:k")
        assert done == {"quarantined": 0, "kept": 0, "set_aside": True}
    done = await exclude_records(state, "gpu-a", hour, everything=True, actor="key:k")
    assert done == {"quarantined": 2, "kept": 0, "set_aside": False}
