"""What was tampered with after a month was closed is found, and named."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from sqlalchemy import delete, exists, func, insert, select, text, update

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.merkle import canonical, digest, header_hash
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.schema import (
    ledger_state,
    period_tenants,
    periods,
    prices,
    rollups,
    usage,
    usage_records,
)
from tests.support.ledger_rows import put
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, OCTOBER, fill
from tests.unit.gateway.metering.make import change_record

MONTHS = ("2026-10", "2026-11")
BOLT = (period_tenants.c.month == "2026-10", period_tenants.c.tenant == "bolt")


def two_months(ledger):
    fill(ledger)
    for of in MONTHS:
        close(ledger, of, now=DECEMBER + GRACE, by="key", policy="proportional")


@pytest.fixture
def copied(ledger_with):
    """Two closed months: a copy to tamper with."""
    return ledger_with(two_months)


def failed(ledger, of=None):
    """(month, check) → what it says."""
    return {(v.month, c.name): c.detail for v in verify(ledger, of) for c in v.checks if c.ok is False}


def change(ledger, statement):
    with ledger.write() as connection:
        done = connection.execute(statement)
        assert done.rowcount == 1


def first(ledger, table, *where):
    with ledger.read() as connection:
        return connection.execute(select(table).where(*where).order_by(*table.primary_key.columns)).first()


def test_on_each_database_what_nobody_touched_is_right_and_what_somebody_did_is_not(ledger):
    two_months(ledger)
    assert {c.ok for v in verify(ledger) for c in v.checks} == {True}
    row = first(ledger, rollups, rollups.c.bucket == "usage")
    change(
        ledger, update(rollups).where(rollups.c.id == row.id).values(nano_gpu_hours=row.nano_gpu_hours + 1)
    )
    change(ledger, update(prices).where(prices.c.gpu_type == "L40").values(rate_micros=1))
    row = first(ledger, usage_records, usage_records.c.ended > NOVEMBER)
    change(ledger, update(usage_records).where(usage_records.c.id == row.id).values(prompt_tokens=10**6))
    found = failed(ledger)
    assert {name for of, name in found if of == "2026-10"} >= {"roll-ups", "balance", "cost", "prices"}
    assert {name for of, name in found if of == "2026-11"} >= {"records", "counts", "prices"}


def test_a_quick_verification_reads_no_records(copied, monkeypatch):
    for reads in ("_records", "_attribution"):
        monkeypatch.setattr(f"gateway.costs.verification.verify.{reads}", None)  # would fail if called
    [october, _] = verify(copied, quick=True)
    assert october.ok
    assert [c.name for c in october.checks if c.ok is None] == ["records", "counts", "attribution"]
    assert [c.name for c in october.checks if c.ok] == [
        "closing", "seal", "chain", "roll-ups", "prices", "rates", "balance", "cost", "residency",
        "statements", "cents",
    ]  # fmt: skip  # one name a line says no more


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_one_token_of_one_record(copied, name):
    row = first(copied, usage, usage.c.ended < NOVEMBER, usage.c.completion_tokens > 0)
    column = usage_records.c[name]
    change(copied, update(usage_records).where(usage_records.c.id == row.id).values({name: column + 1}))
    found = failed(copied)
    assert found.keys() >= {("2026-10", name) for name in ("records", "counts", "attribution")}
    assert not {n for of, n in found if of == "2026-11"} - {"attribution"}
    assert found["2026-10", "records"].startswith(f"{row.tenant}: {name} ")
    assert row.tenant in found["2026-10", "counts"]
    assert row.engine in found["2026-10", "attribution"]


@pytest.mark.parametrize(
    ("values", "checks"),
    [
        ({"key_id": "other"}, {"records"}),
        ({"tenant": "bolt"}, {"records", "counts", "attribution"}),
        ({"ended": NOVEMBER + 1}, {"records", "counts", "attribution"}),
        ({"batch": 10**9}, {"records", "counts"}),
    ],
)
def test_any_other_field_of_a_record(copied, values, checks):
    c = usage.c
    row = first(copied, usage, c.tenant == "acme", c.ended < NOVEMBER, c.engine != "")
    with copied.write() as connection:
        change_record(connection, row.id, **values)
    assert {name for of, name in failed(copied, "2026-10")} >= checks


def test_a_record_that_is_gone_and_one_that_is_new(copied):
    row = first(copied, usage_records, usage_records.c.ended < NOVEMBER)
    change(copied, delete(usage_records).where(usage_records.c.id == row.id))
    found = failed(copied, "2026-10")
    assert "records" in found["2026-10", "records"]
    copy = {**row._mapping, "batch": 1}
    put(copied, usage_records, copy)
    assert {name for _, name in failed(copied, "2026-10")} == set()
    put(copied, usage_records, {**copy, "id": str(UUID(int=0)), "request_id": "other"})
    assert "requests" in failed(copied, "2026-10")["2026-10", "counts"]


def test_one_nano_gpu_hour_of_one_roll_up_row(copied):
    row = first(copied, rollups, rollups.c.posted == "2026-10", rollups.c.bucket == "usage")
    more = update(rollups).where(rollups.c.id == row.id).values(nano_gpu_hours=row.nano_gpu_hours + 1)
    change(copied, more)
    found = failed(copied)
    assert {name for of, name in found if of == "2026-10"} == {
        "roll-ups", "balance", "cost", "statements", "attribution",
    }  # fmt: skip
    assert row.engine in found["2026-10", "balance"]
    assert row.tenant in found["2026-10", "statements"]
    assert f"usage {row.tenant} {row.adapter}" in found["2026-10", "attribution"]
    assert not [of for of, _ in found if of == "2026-11"]


def test_gpu_time_moved_from_one_tenant_to_another(copied):
    """Every sum still fits."""
    here = [rollups.c.posted == "2026-10", rollups.c.bucket == "usage", rollups.c.engine == "a"]
    other = rollups.alias()
    beside = select(other.c.id).where(other.c.piece == rollups.c.piece, other.c.tenant == "bolt")
    here.append(exists(beside.where(other.c.engine == "a", other.c.bucket == "usage")))
    one = first(copied, rollups, *here, rollups.c.tenant == "acme")
    two = first(copied, rollups, *here[:3], rollups.c.tenant == "bolt", rollups.c.piece == one.piece)
    for row, by in ((one, 5), (two, -5)):
        moved = update(rollups).where(rollups.c.id == row.id).values(nano_gpu_hours=row.nano_gpu_hours + by)
        change(copied, moved)
    assert {name for _, name in failed(copied)} == {"roll-ups", "statements", "attribution"}


@pytest.mark.parametrize(
    "values",
    [
        {"root": "0" * 64},
        {"policy": "none"},
        {"records": 59},
        {"currency": "EUR"},
        {"previous_root": "0" * 64},
    ],
)
def test_what_is_stored_of_the_period(copied, values):
    change(copied, update(periods).where(periods.c.month == "2026-10").values(values))
    found = failed(copied)
    assert ("2026-10", "seal") in found
    said = next(iter(values))
    assert {"root": "seal", "previous_root": "root"}.get(said, said) in found["2026-10", "seal"]
    assert (("2026-11", "chain") in found) == ("root" in values)


def test_a_root_forged_with_its_header_breaks_the_chain(copied):
    row = first(copied, periods, periods.c.month == "2026-10")
    document = json.loads(row.document)
    document["summary"]["totals"]["amount_cents"] += 1
    document["header"]["summary"] = digest(document["summary"])
    root = header_hash(document["header"]).hex()
    values = {"document": canonical(document).decode(), "root": root}
    change(copied, update(periods).where(periods.c.month == "2026-10").values(values))
    found = failed(copied)
    assert ("2026-10", "seal") not in found
    october = {("2026-10", name) for name in ("closing", "cents", "statements")}
    assert found.keys() == {*october, ("2026-11", "chain")}


@pytest.mark.parametrize("name", ["amount_cents", "cost", "completion_tokens", "records", "root"])
def test_a_statement(copied, name):
    row = first(copied, period_tenants, *BOLT)
    document = json.loads(row.document)
    document[name] = "1" * 64 if name in {"root", "cost"} else document[name] + 1
    change(copied, update(period_tenants).where(*BOLT).values(document=canonical(document).decode()))
    found = failed(copied)
    assert "statements is" in found["2026-10", "seal"]
    assert ("tenants_root" in found["2026-10", "seal"]) == (name != "cost")  # which customers do not see
    assert "bolt" in found["2026-10", "records" if name == "completion_tokens" else "statements"]


IDLE = rollups.c.posted == "2026-11", rollups.c.bucket == "idle", rollups.c.gpu_type == "L40"
L40 = prices.c.gpu_type == "L40"
DEARER = func.replace(periods.c.document, '"rate_micros":700000', '"rate_micros":700001')


@pytest.mark.parametrize(
    ("statement", "check", "says"),
    [
        (update(period_tenants).where(*BOLT).values(records=1), "statements", "bolt: the row differs"),
        (delete(period_tenants).where(*BOLT), "statements", "bolt has no statement"),
        (update(prices).where(L40).values(rate_micros=700_001), "prices", "was 0.70, now 0.700001"),
        (
            delete(prices).where(L40),
            "prices",
            "L40 on_demand from 1970-01-01T00:00:00Z was 0.70, now missing",
        ),
        (update(rollups).where(*IDLE).values(rate_micros=1), "rates", "rate 0.000001, price book 0.70"),
        (update(periods).values(document=DEARER), "seal", "prices is"),
    ],
)
def test_statements_prices_and_rates(copied, statement, check, says):
    with copied.write() as connection:
        connection.execute(statement)
    wrong = {c.name: c.detail for v in verify(copied, quick=True) for c in v.checks if c.ok is False}
    assert says in wrong[check]


def test_an_hour_that_waits_to_be_corrected_is_said(copied):
    with copied.write() as connection:
        connection.execute(text(f"INSERT INTO dirty_hours VALUES ({OCTOBER}, 'a', 'H100', 2, 1)"))
    [check] = [c for v in verify(copied) for c in v.checks if c.ok is None]
    assert (check.name, check.detail[:37]) == ("attribution", "Not checked: 1 engine-hour awaits cor")


def test_whether_raw_records_were_pruned_is_said(copied):
    with copied.write() as connection:
        connection.execute(delete(usage_records).where(usage_records.c.ended < NOVEMBER))
        connection.execute(insert(ledger_state).values(name="pruned_before", value=NOVEMBER))
        seal(connection, "retention", "pruned_before")
    october, november = verify(copied)
    assert [(c.name, c.ok) for c in october.checks if c.ok is not True] == [("records", None)]
    assert "before 2026-11-01T00:00:00Z were pruned" in october.checks[-1].detail
    assert october.ok
    assert all(check.ok for check in november.checks)
