import pytest
from sqlalchemy import delete, update

from gateway.costs.maintenance import totals as module
from gateway.costs.maintenance.snapshot import read_snapshot
from gateway.costs.maintenance.totals import SETTLED, totals
from gateway.costs.periods import iso, month_of
from gateway.metering.ledger.schema import engine_hours, rollups
from gateway.observability.metrics import BASE, OTHER
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, mark_closed, price, put
from tests.unit.gateway.costs.rolled import row, write

OCTOBER, NOVEMBER = (month_of(m).start // HOUR for m in ("2026-10", "2026-11"))
NOW = (NOVEMBER + 5) * HOUR
NANO = 1_000_000_000


@pytest.fixture
def priced(ledger):
    price(ledger)
    return ledger


def whole(ledger, hour, nano=NANO, *, provisioned=3600, busy=1800, **changes):
    spent = {"provisioned_us": provisioned * 1_000_000, "busy_us": busy * 1_000_000, "nano_gpu_hours": nano}
    put(ledger, engine_hours, engine_hour(hour, **spent, **changes))


def close(ledger, name):
    """As closing does: the rates of its rows are frozen."""
    with ledger.write() as connection:
        connection.execute(
            update(rollups).where(rollups.c.posted == name).values(rate_micros=2_000_000, currency="USD")
        )
    mark_closed(ledger, name)


def costs(found):
    return {(adapter, bucket): value for (adapter, _, _, bucket), value in found.cost}


def test_cost_by_adapter_and_bucket_and_gpu_seconds_by_engine(priced):
    write(
        priced,
        row(NOVEMBER, nano_gpu_hours=NANO // 2),
        row(NOVEMBER, nano_gpu_hours=NANO // 4, adapter="", bucket="usage"),
        row(NOVEMBER, nano_gpu_hours=NANO // 4, bucket="idle"),
        row(NOVEMBER, engine="gpu-b", gpu_type="L40S"),  # no price
    )
    whole(priced, NOVEMBER)
    whole(priced, NOVEMBER + 1, 0, gpu_count=2, provisioned=10, busy=5)
    found = totals(priced, NOW)
    assert costs(found) == {("acme/support", "usage"): 1.0, (BASE, "usage"): 0.5, ("", "idle"): 0.5}
    assert {key[1:3] for key, _ in found.cost} == {("H100", "USD")}
    assert found.provisioned == [(("gpu-a", "H100"), 3620.0)]
    assert found.busy == [(("gpu-a", "H100"), 1810.0)]


def test_parts_that_miss_their_whole_are_seen_and_do_not_cancel(priced):
    write(priced, row(NOVEMBER, nano_gpu_hours=NANO + 3), row(NOVEMBER + 1, nano_gpu_hours=NANO - 2))
    whole(priced, NOVEMBER)
    whole(priced, NOVEMBER + 1)
    assert totals(priced, NOW).imbalance == 5


def test_closed_months_are_summed_once_and_kept(priced):
    write(priced, row(OCTOBER), row(NOVEMBER))
    whole(priced, OCTOBER)
    whole(priced, NOVEMBER)
    assert costs(totals(priced, NOW)) == {("acme/support", "usage"): 4.0}
    assert read_snapshot(priced, SETTLED)["through"] == ""
    close(priced, "2026-10")
    assert costs(totals(priced, NOW + 1)) == {("acme/support", "usage"): 4.0}
    assert read_snapshot(priced, SETTLED)["through"] == "2026-10"
    with priced.write() as connection:  # nobody does; it shows that October is not read again
        connection.execute(delete(rollups).where(rollups.c.posted == "2026-10"))
    correction = row(OCTOBER, posted="2026-11", correction=True, nano_gpu_hours=-NANO // 2)
    write(priced, {**correction, "rate_micros": 2_000_000, "currency": "USD"})
    assert costs(totals(priced, NOW + 2)) == {("acme/support", "usage"): 3.0}


def test_a_correction_in_the_open_month_counts_for_its_hours_balance(priced):
    write(priced, row(OCTOBER))
    whole(priced, OCTOBER, NANO - 7)
    close(priced, "2026-10")
    write(priced, row(OCTOBER, posted="2026-11", correction=True, nano_gpu_hours=-5))
    assert totals(priced, NOW).imbalance == 2
    assert iso(OCTOBER * HOUR) == "2026-10-01T00:00:00Z"


def test_adapters_past_the_cap_share_a_label_and_the_others_keep_theirs(priced, monkeypatch):
    monkeypatch.setattr(module, "LABEL_CAP", 2)
    write(priced, row(NOVEMBER, adapter="acme/b"), row(NOVEMBER, adapter="acme/c"))
    whole(priced, NOVEMBER, 2 * NANO)
    assert costs(totals(priced, NOW)).keys() == {("acme/b", "usage"), ("acme/c", "usage")}
    write(priced, row(NOVEMBER, adapter="acme/a", nano_gpu_hours=NANO // 2))
    assert costs(totals(priced, NOW + 1)) == {
        ("acme/b", "usage"): 2.0, ("acme/c", "usage"): 2.0, (OTHER, "usage"): 1.0,
    }  # fmt: skip
