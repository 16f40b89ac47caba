"""Inserts lines of the usage log into the ledger: in the shipper's thread, or in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.metering.ledger.database import REFUSALS, is_definite
from gateway.metering.ledger.ledger import Inserted, Ledger
from gateway.metering.records import UsageRecord, parse_line


@dataclass(frozen=True, slots=True)
class InsertedLines:
    """The outcome of inserting lines."""

    inserted: Inserted
    refused: tuple[tuple[bytes, str], ...] = ()
    """Lines that the ledger cannot store, and why."""
    torn: tuple[int, ...] = ()
    """Lengths of incomplete lines."""
    seconds: float = 0.0
    """Duration of the transactions."""


class InserterUnavailableError(Exception):
    """The process that inserts died or does not respond."""


class Inserter(Protocol):
    """`insert_lines` in another process."""

    @property
    def running(self) -> bool:
        """Whether the process runs; otherwise a call starts it."""

    def __call__(self, lines: Sequence[bytes]) -> InsertedLines:
        """Blocks. Raises InserterUnavailableError, and LedgerUnavailableError."""


def insert_lines(ledger: Ledger, lines: Sequence[bytes]) -> InsertedLines:
    """Insert the records in one transaction. If the ledger rejects it, in halves, until the rejected record
    is alone. Safe to repeat. Raises LedgerUnavailableError."""
    records, torn, refused = list[UsageRecord](), list[int](), list[tuple[bytes, str]]()
    for line in lines:
        try:
            records.append(parse_line(line))
        except ValueError as error:
            if line.endswith(b"}"):
                refused.append((line, str(error)))
            else:
                torn.append(len(line))
    began = time.perf_counter()
    inserted = insert_each(ledger, records, refused)
    return InsertedLines(inserted, tuple(refused), tuple(torn), time.perf_counter() - began)


def insert_each(ledger: Ledger, records: Sequence[UsageRecord], refused: list[tuple[bytes, str]]) -> Inserted:
    """See `insert_lines`. Adds what cannot be stored to `refused`."""
    try:
        return ledger.insert(records)
    except REFUSALS as error:
        if not is_definite(error):
            raise
        if len(records) == 1:
            refused.append((records[0].line(), str(error)))
            return Inserted()
    middle = len(records) // 2
    return insert_each(ledger, records[:middle], refused) + insert_each(ledger, records[middle:], refused)
