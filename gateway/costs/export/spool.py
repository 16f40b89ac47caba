"""Export files while they are written and sent: limits their number and size, and removes them.

They are in FLORIN_EXPORT_DIR, which an operator can put on another disk than the usage log. A file is
unlinked before it is sent, so nothing is left behind however the response ends. A later worker removes files
that a killed worker was still writing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from gateway.errors import FlorinError

PREFIX: Final = "florin-export-"
FILES: Final = 8
"""Concurrent exports of a worker: this many for tenants, and as many for staff."""
FILES_OF_TENANT: Final = 2
FILES_OF_KEY: Final = 4
"""Concurrent exports of one operator or analyst."""

_LEFT_SECONDS: Final = 6 * 3600.0

Make = Callable[[Path, int], Awaitable[int]]
"""(path, byte limit) → rows: fills the file."""


@dataclass(frozen=True, slots=True)
class Made:
    file: BinaryIO
    size: int
    rows: int


@dataclass(slots=True)
class _Share:
    """Exports in progress, and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Half:
    """The exports of tenants, or those of staff: neither uses the other's space or waits for the other."""

    of_one: int
    """Files."""
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Mutable: in total, and by owner.
    share: _Share = field(default_factory=_Share)
    owners: dict[str, _Share] = field(default_factory=dict)


class Spool:
    """One per worker."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most = most_bytes
        self._tenants = _Half(FILES_OF_TENANT)
        self._staff = _Half(FILES_OF_KEY)

    def __repr__(self) -> str:
        halves = self._tenants.share, self._staff.share
        return f"<Spool {sum(h.files for h in halves)} files, {sum(h.bytes for h in halves)} bytes>"

    @asynccontextmanager
    async def made(self, owner: str, make: Make, *, tenant: bool) -> AsyncGenerator[Made]:
        """A file filled by `make`, until the block ends. `owner`: a tenant, or a key of staff. Raises
        FlorinError, and what `make` raises."""
        half = self._tenants if tenant else self._staff
        shares = half.share, half.owners.get(owner) or _Share()
        for share, most, own in zip(shares, (FILES, half.of_one), (False, True), strict=True):
            if share.files >= most:
                raise _too_many(most, own=own)
        half.owners[owner] = shares[1]
        size = 0
        for share in shares:
            share.files += 1
        try:
            async with half.making:  # one at a time: each may use the space that the others have left
                room = self._most // 2 - shares[0].bytes
                if tenant:
                    room = min(room, self._most // 4 - shares[1].bytes)
                file, rows = await self._fill(make, room)
                size = os.fstat(file.fileno()).st_size
                for share in shares:
                    share.bytes += size
            with file:
                yield Made(file, size, rows)
        finally:
            for share in shares:
                share.files -= 1
                share.bytes -= size
            if not shares[1].files:
                half.owners.pop(owner, None)

    async def _fill(self, make: Make, most: int) -> tuple[BinaryIO, int]:
        """The filled file, open and already unlinked."""
        try:
            handle, name = tempfile.mkstemp(prefix=PREFIX, dir=self.folder)
        except OSError as error:
            raise unwritable(error) from error
        path, file = Path(name), os.fdopen(handle, "rb")
        try:
            return file, await make(path, most)
        except BaseException:
            file.close()
            raise
        finally:
            _remove(path)

    def sweep(self) -> None:
        """Remove files left by killed workers of this user."""
        for path in self.folder.glob(f"{PREFIX}*"):
            with suppress(OSError):
                status = path.stat()
                if status.st_uid == os.getuid() and status.st_mtime < time.time() - _LEFT_SECONDS:
                    _remove_any(path)


def _remove_any(path: Path) -> None:
    """A file, or the directory of a scheduled export."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def unwritable(error: OSError) -> FlorinError:
    return FlorinError("export_failed", f"Cannot write the export file: {error.strerror or error}.")


def _too_many(most: int, *, own: bool) -> FlorinError:
    return FlorinError(
        "too_many_reports" if own else "worker_full",
        f"{most} exports {'of yours ' if own else ''}are in progress: wait until they finish.",
        retry_after=5,
    )


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
