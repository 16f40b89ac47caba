"""Unpacks adapters from untrusted archives: tar (plain, gzip, xz) or zip.

Nothing in an archive is trusted. Names are compared with the table of known files and never used as paths.
Unpacked bytes are counted chunk by chunk. The first problem aborts with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from adapters.checks.adapter_folder import Parts, adapter_folder
from adapters.checks.file_kinds import KNOWN
from adapters.checks.findings import Findings, shown
from adapters.progress import Progress, ProgressMeter, silent
from adapters.sources.archive_entries import ArchiveEntry, ArchiveReader
from adapters.sources.options import UNPACKING
from adapters.sources.staging_area import SourceRefusedError, StagingArea, check_space, too_much
from adapters.sources.tar_archive import TarReader, is_tar
from adapters.sources.zip_archive import ZipReader, is_zip

MAX_ENTRIES = 1000
_DRIVE = re.compile(r"[A-Za-z]:")


def unpack(
    path: Path, destination: Path, *, max_bytes: int, findings: Findings, progress: Progress = silent
) -> None:
    """Unpack the known files of the archive at `path` into the empty directory `destination`, or add
    findings.

    Raises OSError for disk errors. Blocking.
    """
    staging = StagingArea(destination, max_bytes)
    with path.open("rb") as file:
        packed = path.stat().st_size
        check_space(destination, min(packed, max_bytes))

        def take(folder: Parts | None) -> tuple[set[Parts], Parts | None]:
            staging.clear()
            file.seek(0)
            meter = ProgressMeter(UNPACKING, progress, packed)
            meter.tell()
            return _take(_open(file, max_bytes, packed, meter), staging, packed, folder)

        try:
            paths, taken = take(None)
            adapter = adapter_folder(paths)
            adapter.check("in the archive", findings)
            if not findings and taken != adapter.path:
                take(adapter.path)
        except SourceRefusedError as refusal:
            refusal.add_to(findings)


def _open(file: BinaryIO, max_bytes: int, packed: int, meter: ProgressMeter) -> ArchiveReader:
    start = file.read(512)
    file.seek(0)
    if is_zip(start):
        return ZipReader(file, meter)
    if is_tar(start):
        # Ignored content is unpacked too: texts, headers, padding.
        limit = max_bytes + sum(own for own in KNOWN.values() if own is not None)
        return TarReader(file, limit, packed, meter)
    raise SourceRefusedError(
        "archive_unsupported",
        "The file is not an archive of a known kind.",
        found=f"a file that begins with {start[:8]!r}",
        expected="tar, tar.gz, tar.xz or zip",
    )


def _take(
    reader: ArchiveReader, staging: StagingArea, packed: int, folder: Parts | None
) -> tuple[set[Parts], Parts | None]:
    """Unpack the known files of `folder`; if it is None, of the folder nearest to the top that has one, which
    nearly always is the adapter's. Returns all files, and whose known files were unpacked."""
    paths: set[Parts] = set()
    taken = folder
    for count, entry in enumerate(reader.entries(), 1):
        if count > MAX_ENTRIES:
            raise _refused("archive_entries", f"more than {MAX_ENTRIES} entries", "the adapter's files alone")
        parts = _parts(entry)
        if entry.kind == "directory" or not parts or _is_macos_metadata(parts):
            continue
        if parts in paths:
            raise _refused("archive_duplicate", f"{shown(entry.name)} twice", "each file once")
        paths.add(parts)
        name = parts[-1]
        if name not in KNOWN:
            continue
        if folder is None and (taken is None or len(parts) - 1 < len(taken)):
            staging.clear()
            taken = parts[:-1]
        if parts[:-1] == taken:
            if entry.size > staging.limit(name):
                raise too_much(name, entry.size, staging.limit(name), packed)
            staging.write(name, reader.chunks(), packed=packed)
    return paths, taken


def _parts(entry: ArchiveEntry) -> tuple[str, ...]:
    """The components of the entry's name, after the checks that need only name and kind."""
    name = entry.name.replace("\\", "/")
    if name.startswith("/") or _DRIVE.match(name):
        raise _refused("archive_absolute", shown(entry.name), "a name relative to the archive")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _refused("archive_traversal", shown(entry.name), "a name without `..`")
    if entry.kind == "link":
        raise _refused("archive_link", f"a link, {shown(entry.name)}", "plain files")
    if entry.kind == "other":
        raise _refused("archive_device", shown(entry.name), "plain files and directories")
    return parts


def _is_macos_metadata(parts: tuple[str, ...]) -> bool:
    """Whether it is a macOS metadata file, which archives made there contain beside each file."""
    return parts[0] == "__MACOSX" or parts[-1].startswith("._")


_SENTENCES = {
    "archive_absolute": "A name in the archive is absolute, so the file would be written elsewhere.",
    "archive_device": "The archive contains an entry that is not a regular file.",
    "archive_duplicate": "The archive contains a file twice.",
    "archive_entries": "The archive has too many entries.",
    "archive_link": "The archive contains a link.",
    "archive_traversal": "A name in the archive points outside it.",
}


def _refused(code: str, found: str, expected: str) -> SourceRefusedError:
    return SourceRefusedError(code, _SENTENCES[code], found=found, expected=expected)
