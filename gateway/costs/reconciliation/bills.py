"""Imported bills of the GPU provider: each line of each file once, identified by the file's SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select

from adapters.wording import counted
from gateway.costs.periods import Period, iso
from gateway.costs.reconciliation.bill_cells import BillError
from gateway.costs.reconciliation.bill_files import BadLine, BillFormat, BillLine, Parsed, parse_bill
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import bill_lines as table
from gateway.metering.ledger.schema import true_ups
from gateway.units import NANO, decimal_of

_SHOWN = 100
"""Invalid lines that are listed after an import; all are counted."""
_REASONS = 20
"""Mistakes that are listed."""
_CHUNK = 1000
_CONTENT = (
    "start", "end", "resource", "gpu_type", "region", "purchase", "nano_gpu_hours", "cost", "currency",
    "description", "category",
)  # fmt: skip  # one name a line says no more
PREFIX = 8
"""Hexadecimal digits of a file's SHA-256 that identify it in messages."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
_NAMED = 3
"""Line numbers that are named of each mistake."""


@dataclass(slots=True)
class Mistake:
    """Mutable while it is collected."""

    reason: str
    """Where its first line is."""
    count: int = 0
    first: list[int] = field(default_factory=list)
    """Numbers of its first lines."""

    @property
    def where(self) -> str:
        """`line 7`, `lines 2, 3, 4 and 99,997 more`."""
        named = ", ".join(f"{line:,}" for line in self.first)
        if self.count == 1:
            return f"line {named}"
        more = self.count - len(self.first)
        return f"lines {named} and {more:,} more" if more else f"lines {named}"


def mistakes(bad: Iterable[BadLine]) -> list[Mistake]:
    """The invalid lines by reason, because one mistake in a mapping makes every line invalid; the most
    frequent first. Reasons that differ only in what they quote are one."""
    by_reason: dict[str, Mistake] = {}
    for line in bad:
        mistake = by_reason.setdefault(_QUOTED.sub("'…'", line.reason), Mistake(line.reason))
        mistake.count += 1
        if len(mistake.first) < _NAMED:
            mistake.first.append(line.line)
    return sorted(by_reason.values(), key=lambda mistake: (-mistake.count, mistake.first))


class BillRefusedError(Exception):
    """Nothing was imported; `mistakes` says what is wrong with which lines."""

    def __init__(self, message: str, mistakes: tuple[Mistake, ...] = ()) -> None:
        super().__init__(message, mistakes)  # both, so that it can be unpickled from the ledger process
        self.message = message
        self.mistakes = mistakes


class BillConflictError(Exception):
    """The file was imported before with different options."""


class BillNotFoundError(Exception):
    """No import matches, or several do."""


def import_bill(
    ledger: Ledger,
    path: str,
    *,
    file_name: str,
    reading: BillFormat,
    skip_bad: bool,
    now: int,
    actor: str = "",
) -> dict[str, Any]:
    """Import all lines of a file, or none; with `skip_bad`, the valid ones. Importing a file again changes
    nothing. `actor`: recorded in the audit log; empty to record nothing.

    Raises BillRefusedError, BillConflictError, LedgerUnavailableError."""
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with Path(path).open(encoding="utf-8-sig", newline="") as text:
        try:
            parsed = parse_bill(text, reading)
        except BillError as error:
            raise BillRefusedError(str(error)) from error
    wrong = mistakes(parsed.bad)
    if parsed.bad and not skip_bad:
        raise BillRefusedError(_refusal(len(parsed.bad), wrong), tuple(wrong[:_REASONS]))
    if not parsed.lines:
        raise BillRefusedError("The file has no lines for GPUs.", tuple(wrong[:_REASONS]))
    with ledger.write() as connection:
        new = _store(connection, digest, parsed, file_name, now)
        if new:
            seal(connection, "bill", digest)
            details = {"file_name": file_name, "lines": new, "skip_bad": skip_bad}
            record(connection, actor, "bill.import", digest, details, now)
        repeated = _repeated(connection, digest)
    return {
        "source": digest,
        "file_name": file_name,
        "format": parsed.format,
        "lines": len(parsed.lines),
        "new": new,
        "repeated": repeated,
        "gpu_hours": decimal_of(_hours(sum(line.nano_gpu_hours for line in parsed.lines))),
        "cost": _by_currency((line.currency, line.cost) for line in parsed.lines),
        "ignored": parsed.ignored,
        "ignored_cost": {c: f"{cost:f}" for c, cost in sorted(parsed.ignored_cost.items())},
        "bad": [{"line": bad.line, "reason": bad.reason} for bad in parsed.bad[:_SHOWN]],
        "bad_lines": len(parsed.bad),
        "bad_reasons": [
            {"reason": mistake.reason, "lines": mistake.count, "where": mistake.where}
            for mistake in wrong[:_REASONS]
        ],
        "charges": _by_currency((line.currency, line.cost) for line in parsed.lines if not line.gpu_type),
        "inclusive_looking": parsed.inclusive_looking,
    }


def _refusal(lines: int, wrong: Sequence[Mistake]) -> str:
    what = counted(lines, "line is invalid", "lines are invalid")
    reasons = "" if len(wrong) == 1 else f", for {len(wrong):,} reasons"
    return f"{what}{reasons}; nothing was imported."


def _store(connection: Connection, digest: str, parsed: Parsed, file_name: str, now: int) -> int:
    """Returns the number of new lines."""
    columns = (table.c.line, *(table.c[name] for name in _CONTENT))
    known = {row[0]: tuple(row)[1:] for row in connection.execute(select(*columns).where(_is(digest)))}
    new = [line for line in parsed.lines if line.line not in known]
    for line in parsed.lines:
        if line.line in known and known[line.line] != _content(line):
            raise BillConflictError(
                f"This file was imported before with different options (line {line.line} differs): remove "
                f"that import first ({digest[:PREFIX]})."
            )
    rows = [
        {
            "source": digest,
            "line": line.line,
            "file_name": file_name,
            "imported_at": now,
            **dict(zip(_CONTENT, _content(line), strict=True)),
        }
        for line in new
    ]
    for first in range(0, len(rows), _CHUNK):
        connection.execute(insert(table), rows[first : first + _CHUNK])
    return len(new)


def _repeated(connection: Connection, digest: str) -> int:
    """Lines that another import has too, word for word: perhaps the same bill, exported again."""
    other = table.alias()
    alike = and_(*(table.c[name] == other.c[name] for name in _CONTENT))
    query = select(func.count(table.c.line.distinct())).where(
        _is(digest), exists(select(other.c.id).where(alike, other.c.source != digest))
    )
    return int(connection.execute(query).scalar() or 0)


def _content(line: BillLine) -> tuple[Any, ...]:
    return tuple(getattr(line, name) for name in _CONTENT)


def list_bills(ledger: Ledger) -> list[dict[str, Any]]:
    """All imports, newest first. Raises LedgerUnavailableError."""
    query = select(
        table.c.source,
        func.min(table.c.file_name).label("file_name"),
        func.min(table.c.imported_at).label("imported_at"),
        func.count().label("lines"),
        func.min(table.c.start).label("start"),
        func.max(table.c.end).label("end"),
        func.sum(table.c.nano_gpu_hours).label("nano"),
    ).group_by(table.c.source)
    with ledger.read() as connection:
        rows = connection.execute(query).all()
        costs = connection.execute(select(table.c.source, table.c.currency, table.c.cost)).all()
    by_source: dict[str, list[tuple[str, str]]] = {}
    for source, currency, cost in costs:
        by_source.setdefault(source, []).append((currency, cost))
    return [
        {
            "source": row.source,
            "file_name": row.file_name,
            "imported_at": iso(row.imported_at),
            "lines": row.lines,
            "from": iso(row.start),
            "to": iso(row.end),
            "gpu_hours": decimal_of(_hours(int(row.nano))),
            "cost": _by_currency(by_source[row.source]),
        }
        for row in sorted(rows, key=lambda r: (-r.imported_at, r.source))
    ]


def remove_bill(ledger: Ledger, source: str, *, now: int = 0, actor: str = "") -> dict[str, Any]:
    """Remove an import. `source`: the SHA-256 of its file, or a prefix of it. `trued_up`: the months whose
    cost is the invoice's because of it; they stay so until they are trued up again.

    Raises BillNotFoundError, LedgerUnavailableError."""
    with ledger.write() as connection:
        query = select(table.c.source).where(table.c.source.startswith(source, autoescape=True)).distinct()
        line_ids = connection.execute(query).scalars().all()
        if len(source) < PREFIX or len(line_ids) != 1:
            raise BillNotFoundError(
                f"{counted(len(line_ids), 'import matches', 'imports match')} {source[:64]!r}: give at "
                f"least {PREFIX} digits of "
                "one, as the list of bills shows them."
            )
        count = connection.execute(delete(table).where(_is(line_ids[0])).returning(table.c.id)).all()
        seal(connection, "bill", line_ids[0])
        trued_up = _trued_up(connection, line_ids[0])
        details = {"lines": len(count), "trued_up": trued_up}
        record(connection, actor, "bill.remove", line_ids[0], details, now)
    return {"source": line_ids[0], **details}


def _trued_up(connection: Connection, source: str) -> list[str]:
    """The months whose true-up in force is made of this import."""
    rows = connection.execute(select(true_ups.c.month, true_ups.c.document).order_by(true_ups.c.id))
    in_force = {month: json.loads(document) for month, document in rows}
    return sorted(month for month, true_up in in_force.items() if source in true_up["sources"])


def read_bill(connection: Connection, within: Period) -> Iterator[BillLine]:
    """The lines that overlap a period, in order of time."""
    query = (
        select(table.c.line, *(table.c[name] for name in _CONTENT))
        .where(table.c.start < within.end, table.c.end > within.start)
        .order_by(table.c.start, table.c.source, table.c.line)
    )
    for row in connection.execute(query):
        yield BillLine(*row)


def sources_of(connection: Connection, within: Period) -> list[str]:
    """SHA-256 of the files that have lines in a period."""
    query = select(table.c.source).where(table.c.start < within.end, table.c.end > within.start).distinct()
    return sorted(connection.execute(query).scalars())


def _is(digest: str) -> ColumnElement[bool]:
    return table.c.source == digest


def _hours(nano: int) -> Fraction:
    return Fraction(nano, NANO)


def _by_currency(costs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Exact sums by currency."""
    sums: dict[str, Fraction] = {}
    for currency, cost in costs:
        sums[currency] = sums.get(currency, Fraction(0)) + Fraction(cost)
    return {currency: decimal_of(sums[currency]) for currency in sorted(sums)}
