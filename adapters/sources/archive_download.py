"""Downloads an archive, then unpacks it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from adapters.checks.findings import Findings
from adapters.progress import ProgressMeter
from adapters.sources import archive
from adapters.sources.download import DownloadPart, Open, download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.staging_area import SourceRefusedError, archive_limit


def fetch_archive(
    start: Open,
    destination: Path,
    *,
    options: FetchOptions,
    findings: Findings,
    check: Callable[[Path, DownloadPart], None],
) -> None:
    """Download the archive from `start`, verify it with `check`, which gets the last part, too, and unpack it
    into `destination`."""
    with tempfile.TemporaryDirectory(prefix="archive-", dir=destination.parent) as folder:
        packed = Path(folder) / "archive"
        meter = ProgressMeter(FETCHING, options.progress)
        limit = archive_limit(options.max_bytes)
        fetching = download(start, packed, limit=limit, what="The archive", options=options, meter=meter)
        part = run(fetching, meter)
        meter.tell()
        check(packed, part)
        archive.unpack(
            packed, destination, max_bytes=options.max_bytes, findings=findings, progress=options.progress
        )


def check_hash(path: Path, expected: str | None, algorithm: str = "sha256") -> None:
    """Raises SourceRefusedError if the file's hex hash is not `expected`; None accepts any."""
    if expected is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).hexdigest()
    if digest != expected:
        raise SourceRefusedError(
            "hash_mismatch",
            "The downloaded bytes do not match the given hash.",
            found=f"{algorithm} {digest}",
            expected=expected,
        )
