"""Records are stored with numbers in place of names, and read as they came."""

import pytest
from sqlalchemy import delete, insert, select, update

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import ledger_state, usage, usage_names, usage_records, usage_tenants
from tests.unit.gateway.metering.make import record

TIMED = "req-0199a3f4c2d0" + "0123456789abcdef"


@pytest.mark.both_databases
def test_a_request_id_with_its_time_is_in_the_record_s_id(ledger):
    both = [record(TIMED), record(TIMED, 2), record("another")]
    assert both[1].id == "0199a3f4-c2d0-0123-4567-89abcdef0002"
    assert ledger.insert(both).new == 3
    assert [one.attempt for one in ledger.attempts(TIMED)] == [1, 2]
    assert {one.request_id for one in ledger.usage(start=0, end=2**62)} == {TIMED, "another"}
    with ledger.read() as connection:
        request_ids = connection.execute(select(usage_records.c.request_id)).scalars().all()
    assert sorted(request_ids, key=str) == [None, None, "another"]
    assert ledger.insert(both).duplicate == 3


def test_a_database_that_lost_its_last_names_gives_their_numbers_to_others(ledger_url):
    """As after a failover to a server that was behind; the process that inserts remembers the lost ones."""
    ledger, other = Ledger(ledger_url), Ledger(ledger_url)
    ledger.insert([record("first")])
    with ledger.read() as connection:
        before = connection.execute(select(ledger_state)).all()
    ledger.insert([record("lost", tenant="bolt", key_id="k2")])
    with other.write() as connection:
        for table in (usage_records, usage_tenants, usage_names):
            last = select(table.c.id).order_by(table.c.id.desc()).limit(1)
            if table is usage_records:
                last = select(usage.c.id).where(usage.c.request_id == "lost")
            connection.execute(delete(table).where(table.c.id == connection.execute(last).scalar_one()))
        connection.execute(delete(ledger_state))
        connection.execute(insert(ledger_state), [row._asdict() for row in before])
    other.insert([record("theirs", tenant="corgi", key_id="k3")])
    ledger.insert([record("lost", tenant="bolt", key_id="k2"), record("more", tenant="bolt", key_id="k2")])
    tenants = {one.request_id: (one.tenant, one.key_id) for one in ledger.usage(start=0, end=2**62)}
    assert tenants["lost"] == tenants["more"] == ("bolt", "k2")
    assert tenants["theirs"] == ("corgi", "k3")
    ledger.close()
    other.close()


def test_names_of_a_transaction_that_failed_are_forgotten(ledger, monkeypatch):
    ledger.insert([record("first")])
    with monkeypatch.context() as patched:
        patched.setattr("gateway.metering.ledger.ledger.mark_dirty", None)  # fails when called
        with pytest.raises(TypeError):
            ledger.insert([record("failed", tenant="bolt")])
    other = Ledger(ledger._url.render_as_string(hide_password=False))
    other.insert([record("theirs", tenant="corgi")])
    other.close()
    ledger.insert([record("failed", tenant="bolt")])
    assert {one.request_id: one.tenant for one in ledger.usage(start=0, end=2**62)} == {
        "first": "acme", "theirs": "corgi", "failed": "bolt",
    }  # fmt: skip


def test_a_version_that_nobody_wrote_is_not_trusted(ledger):
    """Names without their version; then the file is another one's."""
    ledger.insert([record("x")])
    with ledger.write() as connection:
        connection.execute(delete(ledger_state).where(ledger_state.c.name == "names"))
        connection.execute(update(usage_tenants).values(tenant=usage_tenants.c.tenant + "-2"))
    ledger.insert([record("y")])
    with ledger.read() as connection:
        found = connection.execute(select(usage.c.tenant).where(usage.c.request_id == "y")).scalar_one()
    assert found == "acme"
