"""Puts files where a schedule wants them. A file is there completely or not at all, whatever happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote

from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError


class DestinationError(Exception):
    """A file could not be put there. The message is for the operator."""


def put(to: str, files: dict[str, Path], options: FetchOptions | None = None) -> None:
    """Put files below `to`, by name, in order; a file of that name is replaced. Blocks. Raises
    DestinationError."""
    try:
        if to.startswith("s3://"):
            asyncio.run(_into_bucket(to.removeprefix("s3://"), files, options or FetchOptions(max_bytes=0)))
        else:
            for name, path in files.items():
                _into_directory(Path(unquote(to.removeprefix("file://"))) / name, path)
    except SourceRefusedError as refusal:
        raise DestinationError(f"{refusal.message} ({refusal.found}; {to})") from refusal
    except OSError as error:
        raise DestinationError(f"{to} cannot be written: {error.strerror or error}.") from error


async def _into_bucket(place: str, files: dict[str, Path], options: FetchOptions) -> None:
    from adapters.sources.bucket import Bucket  # noqa: PLC0415  # it takes long to load, and few need it

    name, _, prefix = place.partition("/")
    bucket = await Bucket.connect("s3", name, options)
    for key, path in files.items():
        await bucket.put(f"{prefix}/{key}" if prefix else key, path)


def _into_directory(target: Path, path: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file, path.open("rb") as source:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(handle)
        Path(name).chmod(0o640)  # its readers are other programs' users, in Florin's group
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
