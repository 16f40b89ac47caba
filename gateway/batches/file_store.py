"""Tenants' files in the ledger's database.

An upload is written chunk by chunk, invisible until it is complete. A deleted file is gone at once; its
content is removed afterwards, in portions, and by `sweep` if that is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import Connection, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy import insert as plain_insert

from gateway.batches.documents import OPEN, File, Owner
from gateway.batches.rows import DELETED, PROCESSED, UPLOADING, Page, columns, one, page, portions, read
from gateway.errors import FlorinError
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batch_results, batches, file_chunks, files

CHUNK: Final = 256 * 1024
"""Bytes of a chunk."""
_RESULTS: Final = 32
"""Results that are read at a time."""
_REMOVED: Final = 64
"""Chunks or results that are removed in one transaction."""


class FileStore:
    """Blocks: call it in threads. Every method raises LedgerUnavailableError."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # -- uploads

    def begin(self, file: File, *, most_files: int) -> None:
        """Begin an upload: `expires_at` is when it is given up. Raises FlorinError for the quota."""
        with self._ledger.write() as connection:
            count, _ = _used(connection, file)
            if count >= most_files:
                raise FlorinError(
                    "quota_exceeded",
                    f"This tenant's limit of {most_files:,} files is reached. Delete some first.",
                )
            connection.execute(plain_insert(files), [asdict(file)])

    def append(self, file: File, number: int, data: bytes, *, most_bytes: int) -> None:
        """Write the next chunk. Raises FlorinError for the quota."""
        with self._ledger.write() as connection:
            _, size = _used(connection, file)
            if size + len(data) > most_bytes:
                raise FlorinError(
                    "quota_exceeded",
                    f"This tenant's limit of {most_bytes:,} bytes in files is reached. Delete some first.",
                )
            connection.execute(plain_insert(file_chunks), [{"file": file.id, "number": number, "data": data}])
            put = update(files).where(files.c.id == file.id, files.c.status == UPLOADING)
            if not connection.execute(put.values(bytes=files.c.bytes + len(data))).rowcount:
                raise FlorinError("upload_incomplete", "The upload took too long and was discarded.")

    def finish(self, file: File) -> File:
        """The upload is complete. `file` has its name, size, lines and expiry. Raises FlorinError."""
        done = replace(file, status=PROCESSED)
        with self._ledger.write() as connection:
            put = update(files).where(files.c.id == file.id, files.c.status == UPLOADING)
            if not connection.execute(put.values(asdict(done))).rowcount:
                raise FlorinError("upload_incomplete", "The upload took too long and was discarded.")
        return done

    def discard(self, file_id: str) -> None:
        """Give up an upload."""
        with self._ledger.write() as connection:
            connection.execute(update(files).where(files.c.id == file_id).values(status=DELETED))
        self._remove(file_id)

    # -- for the owner

    def get(self, owner: Owner, file_id: str) -> File | None:
        with self._ledger.read() as connection:
            return one(connection, File, owner, file_id)

    def list(self, owner: Owner, paging: Page, purpose: str = "") -> tuple[list[File], bool]:
        """See `rows.page`."""
        where = [files.c.purpose == purpose] if purpose else []
        with self._ledger.read() as connection:
            return page(connection, File, owner, paging, *where)

    def delete(self, owner: Owner, file_id: str, *, actor: str, now: int) -> bool:
        """Delete a file. Returns False if the owner has none of this id. Raises FlorinError if a batch still
        needs it."""
        with self._ledger.write() as connection:
            file = one(connection, File, owner, file_id, lock=True)
            if file is None:
                return False
            needed = select(batches.c.id).where(batches.c.input_file == file_id, batches.c.status.in_(OPEN))
            batch = connection.execute(needed.limit(1)).scalar()
            if batch is not None:
                raise FlorinError("in_use", f"{file_id} is being used by {batch}. Cancel it first.")
            connection.execute(update(files).where(files.c.id == file_id).values(status=DELETED))
            details = {"tenant": file.tenant, "purpose": file.purpose, "bytes": file.bytes}
            record(connection, actor, "file.delete", file_id, details, now)
        self._remove(file_id)
        return True

    def parts(self, file: File) -> Iterator[bytes]:
        """The content. Each part is read in a transaction of its own, so that a slow reader holds none. Stops
        early if the file is deleted meanwhile."""
        position = 0
        while True:
            with self._ledger.read() as connection:
                if file.batch:
                    rows = connection.execute(_results(file, position)).all()
                    content = b"".join(bytes(row.body) for row in rows)
                    position = rows[-1].line if rows else position
                else:
                    rows = connection.execute(_chunk(file, position)).all()
                    content = b"".join(bytes(row.data) for row in rows)
                    position += 1
            if not rows:
                return
            yield content

    # -- upkeep

    def sweep(self, now: int) -> int:
        """Remove what has expired or was deleted, except inputs of batches that have not ended. Returns the
        number of files."""
        needed = exists().where(batches.c.input_file == files.c.id, batches.c.status.in_(OPEN))
        over = or_(files.c.status == DELETED, and_(files.c.expires_at <= now, ~needed))
        with self._ledger.write() as connection:
            gone = list(connection.execute(select(files.c.id).where(over)).scalars())
            for ids in portions(gone):
                connection.execute(update(files).where(files.c.id.in_(ids)).values(status=DELETED))
        for file_id in gone:
            self._remove(file_id)
        return len(gone)

    def _remove(self, file_id: str) -> None:
        """Remove a deleted file's content, and then the file."""
        with self._ledger.read() as connection:
            query = select(*columns(File)).where(files.c.id == file_id, files.c.status == DELETED)
            deleted = read(File, query, connection)
        if not deleted:
            return
        file = deleted[0]
        removed = True
        while removed:
            with self._ledger.write() as connection:
                removed = _remove_some(connection, file)
        with self._ledger.write() as connection:
            connection.execute(delete(files).where(files.c.id == file_id))


def _used(connection: Connection, file: File) -> tuple[int, int]:
    """How many files and bytes the tenant has, uploads included; output files count, too."""
    query = select(func.count(), func.coalesce(func.sum(files.c.bytes), 0)).where(
        files.c.tenant == file.tenant, files.c.tenant_since == file.tenant_since, files.c.status != DELETED
    )
    count, size = connection.execute(query).one()
    return int(count), int(size)


def _results(file: File, after: int) -> Select[Any]:
    table = batch_results.c
    query = select(table.line, table.body).where(table.batch == file.batch, table.line > after)
    return query.where(table.failed.is_(file.errors)).order_by(table.line).limit(_RESULTS)


def _chunk(file: File, number: int) -> Select[Any]:
    return select(file_chunks.c.data).where(file_chunks.c.file == file.id, file_chunks.c.number == number)


def _remove_some(connection: Connection, file: File) -> bool:
    """Whether there was something to remove."""
    if file.batch:
        lines = list(connection.execute(_results(file, 0).limit(_REMOVED)).scalars())
        gone = delete(batch_results).where(
            batch_results.c.batch == file.batch, batch_results.c.line.in_(lines)
        )
    else:
        query = select(file_chunks.c.number).where(file_chunks.c.file == file.id).limit(_REMOVED)
        lines = list(connection.execute(query).scalars())
        gone = delete(file_chunks).where(file_chunks.c.file == file.id, file_chunks.c.number.in_(lines))
    if lines:
        connection.execute(gone)
    return bool(lines)
