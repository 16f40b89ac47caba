"""Archives that are downloaded first and unpacked then."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from adapters.checks.findings import Findings
from adapters.progress import ProgressMeter
from adapters.sources import archive
from adapters.sources.download import Open, download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.staging_area import SourceRefusedError, archive_limit


def fetch_archive(
    start: Open,
    destination: Path,
    *,
    options: FetchOptions,
    findings: Findings,
    check: Callable[[Path], None],
) -> None:
    """Puts what the archive at `start` holds into `destination`, once `check` has let the whole file pass."""
    with tempfile.TemporaryDirectory(prefix="archive-", dir=destination.parent) as folder:
        packed = Path(folder) / "archive"
        meter = ProgressMeter(FETCHING, options.progress)
        limit = archive_limit(options.max_bytes)
        run(download(start, packed, limit=limit, what="The archive", options=options, meter=meter), meter)
        meter.tell()
        check(packed)
        archive.unpack(
            packed, destination, max_bytes=options.max_bytes, findings=findings, progress=options.progress
        )


def check_hash(path: Path, expected: str | None, algorithm: str = "sha256") -> None:
    """Raises SourceRefusedError if the file has another hash (hex); None: any will do."""
    if expected is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise SourceRefusedError(
            "hash_mismatch",
            "Other bytes came than were named.",
            found=f"{algorithm} {found}",
            expected=expected,
        )
