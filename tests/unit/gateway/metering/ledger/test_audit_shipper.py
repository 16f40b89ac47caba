"""Entries on their way from the store to the ledger, whatever dies or is away in between."""

import itertools
from dataclasses import replace

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.registry import AuditEntry, AuditNote
from gateway.metering.ledger import audit_shipper
from gateway.metering.ledger.audit_log import Wanted, logged, read
from gateway.metering.ledger.audit_shipper import AuditShipper, _ship_each, tail
from gateway.metering.ledger.database import LedgerUnavailableError
from tests.doubles.memory_store import MemoryStore


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


@pytest.fixture
def store():
    return MemoryStore(clock=itertools.count(1_700_000_000_000).__next__)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(audit_shipper, "KEEP", 3)
    monkeypatch.setattr(audit_shipper, "PAGE", 4)


async def note(store, *names):
    for name in names:
        await store.commit((), audit=AuditNote("key:k", "adapter.add", name))


def names(ledger):
    return [e.subject for e in reversed(read(ledger, Wanted(), 1000))]


MANY = [f"acme/{n:02}" for n in range(11)]


async def test_all_are_shipped_once_and_the_newest_stay(store, ledger):
    shipper = AuditShipper(store, ledger)
    await note(store, *MANY)
    assert await shipper.ship() == len(MANY)
    assert names(ledger) == MANY
    assert [e.subject for e in await tail(store)] == MANY[-3:]
    assert await shipper.ship() == 0
    await note(store, "acme/x")
    assert await shipper.ship() == 1
    assert names(ledger) == [*MANY, "acme/x"]
    assert [e.subject for e in await tail(store)] == [*MANY[-2:], "acme/x"]


async def test_what_the_ledger_s_database_lost_follows_with_the_next_entry(store, ledger, ledger_with):
    shipper = AuditShipper(store, ledger)
    await note(store, *MANY)
    await shipper.ship()
    shipper.ledger = behind = ledger_with(name="behind")
    await note(store, "acme/x")
    await shipper.ship()
    assert names(behind) == [*MANY[-3:], "acme/x"]


async def test_nothing_leaves_the_store_before_the_ledger_has_it(store, ledger, monkeypatch):
    await note(store, *MANY)

    def away(*_):
        raise LedgerUnavailableError("away")

    monkeypatch.setattr(audit_shipper, "ship", away)
    shipper = AuditShipper(store, ledger)
    with pytest.raises(LedgerUnavailableError):
        await shipper.ship()
    assert [e.subject for e in await tail(store)] == MANY
    monkeypatch.undo()
    assert await shipper.ship() == len(MANY)
    assert names(ledger) == MANY


async def test_a_death_between_shipping_and_trimming(store, ledger, monkeypatch):
    await note(store, *MANY)

    async def died(*_, **__):
        raise StoreUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(store, "trim_audit", died)
        with pytest.raises(StoreUnavailableError):
            await AuditShipper(store, ledger).ship()
    await note(store, "acme/x")
    await AuditShipper(store, ledger).ship()
    assert names(ledger) == [*MANY, "acme/x"]
    assert len(await tail(store)) == 3


async def test_a_store_that_comes_back_empty_with_its_clock_behind(store, ledger):
    """Ids begin where they have been before: nothing new is taken for what was shipped, by whom ever."""
    shipper = AuditShipper(store, ledger)
    await note(store, *MANY)
    await shipper.ship()
    shipper.store = empty = MemoryStore(clock=itertools.count(1_700_000_000_000).__next__)
    anew = [f"bolt/{n:02}" for n in range(8)]
    await note(empty, *anew)
    await shipper.ship()
    assert sorted(names(ledger)) == [*MANY, *anew]


async def test_an_entry_that_no_database_can_hold_holds_up_no_others(store, ledger, caplog):
    entries = [
        logged(AuditEntry(f"{1000 + n}-0", AuditNote("key:k", "adapter.add", f"s{n}"))) for n in range(9)
    ]
    entries[4] = replace(entries[4], seq=2**64, subject="s4 \udcff", details={"why": 2**63})
    _ship_each(ledger, entries)
    _ship_each(ledger, entries)  # as after a crash
    found = {e.id: e for e in read(ledger, Wanted(), 100)}
    assert len(found) == 9
    kept = found["1004-0"]
    assert (kept.digest, kept.action, kept.subject) == (entries[4].digest, "adapter.add", "s4 \\udcff")
    assert "9223372036854775808" in kept.details["not_as_it_was"]
    assert any("cannot store this audit entry unchanged" in message for message in caplog.messages)


@pytest.mark.parametrize("number", [3, 9])
async def test_a_database_that_is_away_gives_no_entry_up(store, ledger, monkeypatch, number):
    entries = [
        logged(AuditEntry(f"{1000 + n}-0", AuditNote("key:k", "adapter.add", "s"))) for n in range(number)
    ]

    def away():
        raise LedgerUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "write", away)
        with pytest.raises(LedgerUnavailableError):
            _ship_each(ledger, entries)
    _ship_each(ledger, entries)
    assert len(read(ledger, Wanted(), 100)) == number
