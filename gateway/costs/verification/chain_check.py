"""Compares the books with the chain of what was written to them, and the chain with anchors that were kept
elsewhere. Reads each entry once, and no usage record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, text

from adapters.wording import counted
from gateway.costs.proofs.proof import ProofCheck
from gateway.metering.ledger.chain import (
    BEFORE_ALL,
    KINDS,
    Entry,
    content,
    entry_hash,
    last_entry,
    subject_of,
)
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import audit_log, ledger_chain

MOST_ANCHORS = 100
"""That are checked at once."""
_PAGE = 5_000
_KEYS = 500
_SHOWN = 3
"""Most differences to list of a kind."""
_TRIGGERS = {
    "sqlite": (
        "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        ("audit_log_no_update", "audit_log_no_delete", "ledger_chain_no_update", "ledger_chain_no_delete"),
    ),
    "postgresql": (
        "SELECT tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A')",
        ("audit_log_no_change", "ledger_chain_no_change"),
    ),
}
"""How to list the triggers of a database that are on, and which there must be."""


class Anchor(NamedTuple):
    """An entry of the chain, recorded out of reach of those who can write to the ledger's database."""

    entries: int
    """Its number: it and all before are covered."""
    hash: str


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    entries: int
    hash: str
    checks: tuple[ProofCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    def document(self) -> dict[str, Any]:
        checks = [asdict(check) for check in self.checks]
        return {"entries": self.entries, "hash": self.hash, "ok": self.ok, "checks": checks}


@dataclass(slots=True)
class Differences:
    """Mutable while it is collected: some sentences, and how many there are."""

    shown: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, sentence: str) -> None:
        self.count += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(sentence)

    def check(self, name: str, right: str) -> ProofCheck:
        if not self.count:
            return ProofCheck(name, ok=True, detail=right)
        more = f"; and {self.count - _SHOWN:,} more" if self.count > _SHOWN else ""
        return ProofCheck(name, ok=False, detail="; ".join(self.shown) + more)


def anchor_of(ledger: Ledger) -> Anchor:
    """The last entry. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        last = last_entry(connection)
        return Anchor(last.number, last.hash)


def chain_verified(ledger: Ledger, anchors: Sequence[Anchor]) -> dict[str, Any]:
    """`verify_chain` as plain data, for the ledger process. Raises LedgerUnavailableError."""
    return verify_chain(ledger, anchors).document()


def verify_chain(ledger: Ledger, anchors: Sequence[Anchor] = ()) -> VerifiedChain:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        links, audited = Differences(), _Audited(connection)
        hashes = {anchor.entries: "" for anchor in anchors}
        sealed: dict[str, dict[str, str]] = {name: {} for name in KINDS if name != "audit"}
        last = BEFORE_ALL
        for page in _pages(connection):
            for entry in page:
                if wrong := _broken(last, entry):
                    links.add(wrong)
                if entry.number in hashes:
                    hashes[entry.number] = entry.hash
                if entry.kind in sealed:
                    sealed[entry.kind][entry.subject] = entry.content
                last = entry
            audited.add([entry for entry in page if entry.kind == "audit"])
        checks = [
            links.check(
                "chain",
                f"{counted(last.number, 'entry is there', 'entries follow each other')}; the last is "
                f"{last.hash}.",
            ),
            *_anchored(anchors, hashes, last),
            audited.check(),
            *(_kind(connection, name, subjects) for name, subjects in sealed.items()),
            _triggers(connection),
        ]
    return VerifiedChain(last.number, last.hash, tuple(check for check in checks if check is not None))


def _pages(connection: Connection) -> Iterator[list[Entry]]:
    c = ledger_chain.c
    query = select(c.number, c.kind, c.subject, c.content, c.hash).order_by(c.number).limit(_PAGE)
    after = 0
    while page := [Entry(*row) for row in connection.execute(query.where(c.number > after))]:
        yield page
        after = page[-1].number


def _broken(before: Entry, entry: Entry) -> str | None:
    if entry.number != before.number + 1:
        return f"entry {entry.number:,} follows entry {before.number:,}: the entries between were removed"
    if entry.hash != entry_hash(before.hash, entry.number, entry.kind, entry.subject, entry.content):
        return f"entry {entry.number:,} or the one before was changed"
    return None


def _anchored(anchors: Sequence[Anchor], hashes: Mapping[int, str], last: Entry) -> Iterator[ProofCheck]:
    if not anchors:
        return
    wrong = Differences()
    for anchor in anchors:
        if anchor.entries > last.number:
            wrong.add(f"the anchor is of entry {anchor.entries:,}, and the chain ends at {last.number:,}")
        elif anchor.entries and hashes[anchor.entries] != anchor.hash:
            wrong.add(f"entry {anchor.entries:,} is not that of the anchor: what is before it was rewritten")
    newest = max(anchor.entries for anchor in anchors)
    yield wrong.check("anchor", f"Up to number {newest:,}, the entries are those of the anchor.")


class _Audited:
    """Looks up the audit entries of the chain, page by page, since there may be millions. Mutable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wrong = Differences()
        self._sealed = self._there = 0

    def add(self, entries: Sequence[Entry]) -> None:
        self._sealed += len(entries)
        for first in range(0, len(entries), _KEYS):
            some = entries[first : first + _KEYS]
            ids = {json.loads(entry.subject)[0] for entry in some}
            rows = self._connection.execute(select(audit_log).where(audit_log.c.id.in_(ids))).mappings()
            by_subject = {subject_of((row["id"], row["digest"])): row for row in rows}
            for entry in some:
                row = by_subject.get(entry.subject)
                self._there += row is not None
                if row is None:
                    self._wrong.add(f"{json.loads(entry.subject)[0]} is missing")
                elif content(audit_log, [row]) != entry.content:
                    self._wrong.add(f"{row['id']} ({row['action']} {row['subject']}) was changed")

    def check(self) -> ProofCheck | None:
        """After all of the chain."""
        stored = self._connection.execute(select(func.count()).select_from(audit_log)).scalar_one()
        if stored > self._there:
            self._wrong.add(
                f"{counted(stored - self._there, 'entry was', 'entries were')} added past "
                f"Florin{self._example()}"
            )
        if not self._sealed and not stored:
            return None
        audited = counted(stored, "entry is as it was", "entries are as they were")
        return self._wrong.check(KINDS["audit"].title, f"{audited} written.")

    def _example(self) -> str:
        c = ledger_chain.c
        sealed = set(self._connection.execute(select(c.subject).where(c.kind == "audit")).scalars())
        keys = self._connection.execute(select(audit_log.c.id, audit_log.c.digest))
        strange = (id_ for id_, digest in keys if subject_of((id_, digest)) not in sealed)
        first = next(strange, None)
        return "" if first is None else f", like {first}"


def _kind(connection: Connection, name: str, sealed: Mapping[str, str]) -> ProofCheck | None:
    """Compares all rows of a kind with the last entry of each key."""
    kind, wrong = KINDS[name], Differences()
    stored = dict(kind.subjects(connection))
    for subject in sorted(sealed.keys() | stored.keys()):
        was, now = sealed.get(subject, ""), stored.get(subject, "")
        if was != now:
            change = "was added past Florin" if not was else "was changed" if now else "is missing"
            wrong.add(f"{_named(subject)} {change}")
    if not sealed and not stored:
        return None
    return wrong.check(kind.title, f"{len(stored):,} are as they were recorded.")


def _named(subject: str) -> str:
    return " ".join(str(part) for part in json.loads(subject) if part != "") or "the default"


def _triggers(connection: Connection) -> ProofCheck:
    query, needed = _TRIGGERS[connection.dialect.name]
    there = set(connection.execute(text(query)).scalars())
    missing = [name for name in needed if name not in there]
    if missing:
        detail = f"Dropped or switched off: {', '.join(missing)}."
        return ProofCheck("triggers", ok=False, detail=detail)
    return ProofCheck("triggers", ok=True, detail="Audit log and chain refuse changes.")


def anchors_of(texts: Iterable[str]) -> list[Anchor]:
    """From texts like `12:ab…`."""
    pairs = [value.split(":") for value in texts]
    return [Anchor(int(number), hashed) for number, hashed in pairs]
