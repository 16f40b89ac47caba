"""The chain: what was written to the books, so that a later change of it is seen.

Whoever can write to the database can change any row. So each transaction that writes to the books appends
entries to `ledger_chain`: which rows it wrote, a hash of them, and the hash of the entry before. A change
made past Florin then differs from the entry of its rows, and changing the entry breaks every hash after it.
Someone who rewrites the whole chain is found by an anchor: the number and the hash of an entry, kept
elsewhere.

An entry's hash is SHA-256 over 0x03 and the canonical JSON of `{"content", "kind", "number", "previous",
"subject"}`. `content` is SHA-256 over the canonical JSON of each row, in the order of the primary key, each
with a newline; empty if the rows were removed. What a row has in common with those from before a column
existed (null, or the column's default) is left out, so that a new column changes no earlier hash.

To have another table in the chain: a row in KINDS, and `seal` in each transaction that writes to it. A
migration that rewrites rows of a kind seals them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Column, ColumnElement, Connection, Table, and_, insert, select, text, true

from gateway.metering.ledger.schema import (
    audit_log,
    bill_acceptances,
    bill_lines,
    calibrations,
    close_requests,
    commitments,
    credit_draws,
    credit_grants,
    exchange_rates,
    invoice_documents,
    invoices,
    ledger_chain,
    ledger_state,
    manual_lines,
    periods,
    prices,
    quarantine,
    rate_card_assignments,
    rate_cards,
    standing_policies,
    true_ups,
)

PRUNED = "pruned_before"
"""The row of `ledger_state` that is in the chain: it excuses missing records."""
_LOCK = 0x666C6F73
"""PostgreSQL advisory lock, held from the first entry of a transaction to its end."""
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of a table. An entry covers those with the same key."""

    title: str
    table: Table
    key: tuple[str, ...]
    where: ColumnElement[bool] = true()  # noqa: RUF009  # constant

    def rows(self, connection: Connection, key: Sequence[Any]) -> Iterator[Mapping[Any, Any]]:
        """In the order of the primary key."""
        same = (self.table.c[name] == value for name, value in zip(self.key, key, strict=True))
        query = select(self.table).where(and_(self.where, *same))
        return iter(connection.execute(query.order_by(*self.table.primary_key.columns)).mappings())

    def subjects(self, connection: Connection) -> Iterator[Subject]:
        """Everything that the table holds of the kind."""
        order = [self.table.c[name] for name in self.key]
        query = select(self.table).where(self.where).order_by(*order, *self.table.primary_key.columns)
        rows = connection.execute(query.execution_options(yield_per=_PAGE)).mappings()
        for key, same in groupby(rows, itemgetter(*self.key)):
            yield Subject(subject_of(key if len(self.key) > 1 else (key,)), content(self.table, same))


class Subject(NamedTuple):
    subject: str
    content: str


KINDS: Mapping[str, Kind] = {
    "audit": Kind("audit log", audit_log, ("id", "digest")),
    "month": Kind("closed months", periods, ("month",)),
    "invoice": Kind("invoices", invoices, ("month", "tenant")),
    "document": Kind("issued documents", invoice_documents, ("number",)),
    "manual_line": Kind("manual lines", manual_lines, ("id",)),
    "credit": Kind("prepaid credits", credit_grants, ("id",)),
    "credit_draw": Kind("drawn credits", credit_draws, ("month",)),
    "close_request": Kind("requests to close", close_requests, ("month",)),
    "dismissal": Kind("dismissals", quarantine, ("id",), quarantine.c.dismissed_at.is_not(None)),
    "true_up": Kind("true-ups", true_ups, ("month",)),
    "acceptance": Kind("acceptances", bill_acceptances, ("month",)),
    "bill": Kind("bills", bill_lines, ("source",)),
    "commitment": Kind("commitments", commitments, ("id",)),
    "price": Kind("price book", prices, ("gpu_type", "region", "purchase")),
    "exchange_rate": Kind("exchange rates", exchange_rates, ("currency", "target")),
    "rate_card": Kind("rate cards", rate_cards, ("name",)),
    "assignment": Kind("card assignments", rate_card_assignments, ("tenant",)),
    "policy": Kind("policies", standing_policies, ("tenant",)),
    "calibration": Kind("calibrations", calibrations, ("gpu_type", "base_model")),
    "retention": Kind("retention", ledger_state, ("name",), ledger_state.c.name == PRUNED),
}


class Entry(NamedTuple):
    """A row of `ledger_chain`."""

    number: int
    kind: str
    subject: str
    content: str
    hash: str


BEFORE_ALL = Entry(0, "", "", "", "")


def seal(connection: Connection, kind: str, *key: Any) -> None:
    """In the write transaction of a change, after it: append an entry of the rows with that key."""
    rows = KINDS[kind].rows(connection, key)
    append(connection, [(kind, subject_of(key), content(KINDS[kind].table, rows))])


def append(connection: Connection, written: Iterable[tuple[str, str, str]]) -> None:
    """Append an entry for each (kind, subject, content), in the caller's write transaction."""
    entries: list[Entry] = []
    for kind, subject, hashed in written:
        before = entries[-1] if entries else _last(connection)
        number = before.number + 1
        entries.append(
            Entry(number, kind, subject, hashed, entry_hash(before.hash, number, kind, subject, hashed))
        )
    if entries:
        connection.execute(insert(ledger_chain), [entry._asdict() for entry in entries])


def adopt(connection: Connection) -> None:
    """Append what the ledger holds of kinds that the chain has nothing of: it was there before the chain."""
    known = set(connection.execute(select(ledger_chain.c.kind).distinct()).scalars())
    for name, kind in KINDS.items():
        subjects = iter(()) if name in known else kind.subjects(connection)
        while page := list(islice(subjects, _PAGE)):
            append(connection, [(name, *subject) for subject in page])


def last_entry(connection: Connection) -> Entry:
    """BEFORE_ALL if there is none."""
    c = ledger_chain.c
    query = select(c.number, c.kind, c.subject, c.content, c.hash).order_by(c.number.desc()).limit(1)
    row = connection.execute(query).first()
    return Entry(*row) if row else BEFORE_ALL


def _last(connection: Connection) -> Entry:
    if connection.dialect.name == "postgresql":  # on SQLite, a write transaction is the only one
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    return last_entry(connection)


def is_as_sealed(connection: Connection, kind: str, *key: Any) -> bool:
    """Whether the rows with that key are those of their latest entry; also if there are none of either."""
    c = ledger_chain.c
    query = select(c.content).where(c.kind == kind, c.subject == subject_of(key))
    sealed = connection.execute(query.order_by(c.number.desc()).limit(1)).scalar() or ""
    return sealed == content(KINDS[kind].table, KINDS[kind].rows(connection, key))


def subject_of(key: Iterable[Any]) -> str:
    return _canonical(list(key)).decode()


def entry_hash(previous: str, number: int, kind: str, subject: str, hashed: str) -> str:
    """`previous`: the hash of the entry before; empty for the first."""
    document = {
        "number": number, "kind": kind, "subject": subject, "content": hashed, "previous": previous,
    }  # fmt: skip  # one name a line says no more
    return hashlib.sha256(b"\x03" + _canonical(document)).hexdigest()


def content(table: Table, rows: Iterable[Mapping[Any, Any]]) -> str:
    """What an entry has of these rows: see above."""
    columns = _columns(table)
    lines = [
        _canonical(
            {name: v for name, absent in columns if (v := row[name]) is not None and _text(v) != absent}
        )
        for row in rows
    ]
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest() if lines else ""


@cache
def _columns(table: Table) -> tuple[tuple[str, str | None], ...]:
    """Each column with its default, as text."""
    return tuple((str(column.name), _default(column)) for column in table.columns)


def _default(column: Column[Any]) -> str | None:
    default = getattr(column.server_default, "arg", None)
    return None if default is None else str(getattr(default, "text", default)).strip("'")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
