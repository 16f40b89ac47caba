"""The audit log in the ledger, on each kind of database."""

import random

import pytest
from sqlalchemy import text

from adapters.store.protocol.registry import AuditEntry, AuditNote
from gateway.costs.prices.book import PriceConflictError
from gateway.costs.prices.price_store import add_price
from gateway.metering.ledger.audit_log import Wanted, logged, read, record, ship
from gateway.metering.ledger.database import LedgerUnavailableError


def entry(
    id_="1700000000000-0", actor="key:k", action="adapter.add", subject="acme/a", version="", **details
):
    return logged(AuditEntry(id_, AuditNote(actor, action, subject, version, details)))


def everything(ledger):
    return read(ledger, Wanted(), 10_000)


def test_an_entry_comes_back_as_it_was(ledger):
    made = entry("1700000000123-4", version="v2", old=None, new={"é": [1, 2.5, "\0"]}, subject="a\0b")
    ship(ledger, [made])
    assert everything(ledger) == [made]
    assert (made.at, made.seq, made.subject) == (1_700_000_000_123_000, 4, "a\\0b")


def test_shipping_twice_changes_nothing(ledger):
    entries = [entry(f"1700000000000-{n}") for n in range(450)]
    ship(ledger, entries)
    ship(ledger, [*entries[100:], entry("1700000000001-0")])
    assert [e.id for e in everything(ledger)] == ["1700000000001-0", *(e.id for e in reversed(entries))]


def test_an_id_that_was_given_twice_keeps_both_notes(ledger):
    """As after a Redis that lost its data on a host whose clock is behind."""
    first, second = entry(subject="acme/a"), entry(subject="acme/b")
    ship(ledger, [first])
    ship(ledger, [second])
    assert sorted(everything(ledger), key=lambda e: e.subject) == [first, second]


def test_nothing_is_changed_or_removed(ledger):
    ship(ledger, [entry()])
    with ledger.read() as connection:
        emptied = ["TRUNCATE audit_log"] if connection.dialect.name == "postgresql" else []
    for change in ("UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log", *emptied):
        with pytest.raises(LedgerUnavailableError, match="append-only"), ledger.write() as connection:
            connection.execute(text(change))
    assert everything(ledger) == [entry()]


def test_what_is_wanted_is_what_comes_by_pages(ledger):
    """The database's answer is the plain definition's, for filters of all kinds, page by page."""
    dice = random.Random(7)
    pool = [
        entry(
            f"{1_700_000_000_000 + dice.randrange(6)}-{dice.randrange(12)}",
            actor=dice.choice(["bootstrap", "key:a", "key:A", "key:ab"]),
            action=dice.choice(["adapter.add", "adapter.promote", "engine.add"]),
            subject=dice.choice(["acme/a", "acme/ab", "acme/%", "bolt/a", "a1"]),
            n=dice.randrange(3),
        )
        for _ in range(300)
    ]
    pool = list({(e.id, e.digest): e for e in pool}.values())
    ship(ledger, pool)
    times = [None, *(1_700_000_000_000_000 + n * 1000 for n in range(7))]
    matched = 0
    for _ in range(60):
        wanted = Wanted(
            subject=dice.choice([None, "acme/a", "acme/*", "acme/%*", "*", "A1"]),
            actor=dice.choice([None, "key:a", "key:*", "key:a*", "bootstrap"]),
            action=dice.choice([None, "adapter.*", "engine.add"]),
            since=dice.choice(times),
            until=dice.choice(times),
        )
        expected = sorted((e for e in pool if wanted.takes(e)), key=lambda e: e.position, reverse=True)
        matched += len(expected)
        found, page = [], None
        while page is None or len(page) == 17:
            before = found[-1].position if found else None
            page = read(ledger, Wanted(**{f: getattr(wanted, f) for f in FILTERS}, before=before), 17)
            found += page
        assert found == expected
    assert matched > 300


FILTERS = ("subject", "actor", "action", "since", "until")


def test_a_note_stands_and_falls_with_its_transaction(ledger):
    with pytest.raises(ZeroDivisionError), ledger.write() as connection:
        record(connection, "key:k", "price.add", "H100", {}, 5 // (everything(ledger) != []))
    assert everything(ledger) == []


def price(ledger, rate, actor):
    return add_price(
        ledger, gpu_type="H100", rate=rate, currency="USD", purchase="on_demand", region="", valid_from=0,
        valid_to=None, now=1_700_000_000_000_000, actor=actor,
    )  # fmt: skip


def test_a_price_is_noted_once(ledger):
    price(ledger, "2.50", "key:k")
    price(ledger, "2.50", "key:other")  # stands already: nothing was done
    with pytest.raises(PriceConflictError):
        price(ledger, "3", "key:other")
    [noted] = everything(ledger)
    assert (noted.actor, noted.action, noted.subject) == ("key:k", "price.add", "H100")
    assert noted.details["rate_per_gpu_hour"] == "2.50"
    assert noted.at == 1_700_000_000_000_000
