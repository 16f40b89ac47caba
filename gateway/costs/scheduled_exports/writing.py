"""Writes what is due, in a process of its own, and remembers in the ledger what was written."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select

from adapters.wording import counted
from gateway.costs.export.files import MissingPriceError, export
from gateway.costs.export.foreign import MOST_CLOUDZERO_ROWS
from gateway.costs.export.spool import PREFIX
from gateway.costs.export.writers import ParquetMissingError, TooLargeError
from gateway.costs.periods import iso
from gateway.costs.rollups.rollup import roll
from gateway.costs.scheduled_exports.destination import DestinationError, put
from gateway.costs.scheduled_exports.layout import Schedule, State, Written, due
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups, scheduled_exports

ACTOR = "florin"
_ROLL_SECONDS = 30.0


def due_now(ledger: Ledger, schedule: Schedule, now: int) -> list[tuple[str, State]]:
    """Months to export now, the oldest first; of those that maintenance has rolled up. Raises
    LedgerUnavailableError."""
    with ledger.read() as connection:
        months = list(_months(connection, iso(now)[:7]))
        written = _held(connection, schedule, [month for month, _ in months])
    return list(due(months, written, now, schedule.every))


@dataclass(frozen=True, slots=True)
class Room:
    """Where files are made before they are put somewhere."""

    folder: Path
    most: int
    """Bytes of a file."""


def write_due(ledger: Ledger, schedule: Schedule, now: int, room: Room) -> list[str]:
    """Export what is due. Returns what failed, by month; the others are written. Nothing is written before
    the roll-ups are up to date: nobody looks at whether such a file is complete. Raises
    LedgerUnavailableError."""
    if pending := roll(ledger, now, patience=_ROLL_SECONDS).pending:
        return [f"{counted(pending, 'engine-hour is', 'engine-hours are')} not rolled up yet."]
    failed = []
    for month, state in due_now(ledger, schedule, now):
        try:
            _write(ledger, schedule, month, state, now, room)
        except (DestinationError, MissingPriceError, ParquetMissingError) as error:
            failed.append(f"{month}: {error}")
        except TooLargeError:
            failed.append(f"{month}: the file exceeds FLORIN_EXPORT_MAX_BYTES.")
        except OSError as error:
            failed.append(f"{month}: the file cannot be made in {room.folder}: {error.strerror or error}.")
    return failed


def _write(ledger: Ledger, schedule: Schedule, month: str, state: State, now: int, room: Room) -> None:
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=room.folder) as directory:
        path, manifest = Path(directory, "data"), Path(directory, "manifest")
        path.touch()
        rows = export(ledger, schedule.order(month), path, room.most)
        if schedule.format == "cloudzero" and rows > MOST_CLOUDZERO_ROWS:
            raise DestinationError(
                f"CloudZero takes at most {MOST_CLOUDZERO_ROWS:,} rows of a file, and this has {rows:,}: set "
                "FLORIN_EXPORT_GRANULARITY=daily."
            )
        if schedule.file == "csv.gz":
            path = _zipped(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        written = Written(
            object=schedule.object(month), month=month, state=state, digest=digest, rows=rows,
            size=path.stat().st_size, written_at=now, checked_at=now,
        )  # fmt: skip  # a row
        with ledger.read() as connection:
            before = _held(connection, schedule, [month]).get(month)
        if before is None or (before.digest, before.state) != (written.digest, written.state):
            manifest.write_text(written.manifest(schedule))
            # The manifest last: it names a file that is there.
            put(schedule.to, {schedule.data(month, now): path, schedule.manifest(month): manifest})
    with ledger.write() as connection:
        _remember(connection, written, before)


def _zipped(path: Path) -> Path:
    """Without a name and a time, so that the same rows give the same bytes."""
    archive = path.with_name("zipped")
    with (
        path.open("rb") as file,
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped,
    ):
        shutil.copyfileobj(file, zipped, 1 << 20)
    return archive


def _remember(connection: Connection, written: Written, before: Written | None) -> None:
    values = asdict(written)
    if before is not None and (before.digest, before.state) == (written.digest, written.state):
        values["written_at"] = before.written_at
    else:
        record(connection, ACTOR, "export.write", written.month, {
            "object": written.object, "state": written.state, "rows": written.rows, "sha256": written.digest,
        }, written.checked_at)  # fmt: skip
    statement = insert(connection, scheduled_exports).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["object"], set_=values))


def _held(connection: Connection, schedule: Schedule, months: list[str]) -> dict[str, Written]:
    objects = [schedule.object(month) for month in months]
    query = select(scheduled_exports).where(scheduled_exports.c.object.in_(objects))
    return {row["month"]: Written(**row) for row in connection.execute(query).mappings()}


def _months(connection: Connection, present: str) -> Iterator[tuple[str, State]]:
    """Closed months, and those after them that have usage. A month that is being closed waits."""
    known = select(periods.c.month, periods.c.state).order_by(periods.c.month)
    name = ""
    for month, state in connection.execute(known):
        name = month
        if state == "closed":
            yield month, "closed"
    posted = rollups.c.posted
    while name := connection.execute(
        select(func.min(posted)).where(posted > name, posted <= present)
    ).scalar_one():
        yield name, "open"
