"""Downloads from the gateway: to a temporary file with a progress bar, then renamed atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from gateway.commands.client import Api, Json, UnreachableError, UsageError
from gateway.commands.output import console
from gateway.schemas.finance import LACKS, Complete, IncompleteReason

if TYPE_CHECKING:
    import httpx2

ROWS_HEADER = "x-florin-rows"


@dataclass(frozen=True, slots=True)
class Saved:
    size: int
    """Bytes."""
    rows: int
    """As the gateway says."""
    completeness: Complete
    """As in the JSON of a report."""


def download(api: Api, path: str, params: Json, place: Path) -> Saved:
    """GET `path` into the file `place`, atomically.

    Raises UsageError if the file cannot be written, ApiError, UnreachableError."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _beside(place) as file, Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task("computing …", total=None)
        return api.stream(path, params, lambda answer: _save(answer, file, bar, task))


@contextmanager
def _beside(place: Path) -> Iterator[BinaryIO]:
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise UsageError(f"Cannot write {place}: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # like any newly created file
        Path(temporary).replace(place)
    except OSError as error:
        raise UsageError(f"Cannot write {place}: {error.strerror}.") from error
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


def _save(answer: httpx2.Response, file: BinaryIO, bar: Progress, task: TaskID) -> Saved:
    total = int(answer.headers.get("content-length", 0))
    size = 0
    bar.update(task, description="downloading", total=total or None)
    for chunk in answer.iter_bytes():
        file.write(chunk)
        size += len(chunk)
        bar.update(task, completed=size)
    if total and size != total and "content-encoding" not in answer.headers:
        raise UnreachableError(f"The gateway closed the connection after {size:,} of {total:,} bytes.")
    return Saved(size, int(answer.headers.get(ROWS_HEADER, 0)), completeness(answer))


def completeness(answer: httpx2.Response) -> Complete:
    complete = answer.headers.get("x-florin-complete") != "false"
    codes = answer.headers.get("x-florin-incomplete", "").split(", ")
    reasons = tuple(IncompleteReason.about(code) for code in LACKS if code in codes)
    return Complete(complete=complete, reasons=reasons, missing=answer.headers.get("x-florin-missing"))
