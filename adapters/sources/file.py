"""Fetches adapters from this host: a directory, a repository in the Hub's cache, or an archive."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from adapters.checks.adapter_folder import directory_of
from adapters.checks.file_kinds import KNOWN
from adapters.checks.findings import Findings, shown
from adapters.checks.validate import check_files
from adapters.progress import CHUNK, ProgressMeter
from adapters.sources import archive
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.staging_area import SourceRefusedError, StagingArea, check_space


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """Copy the known files, after the checks that need the original directory (links, kinds, sizes).

    The copy is checked again, so changes to the original meanwhile do no harm.
    """
    source = _path(uri)
    if source is not None and source != (snapshot := _snapshot(source)):
        source, uri = snapshot, str(snapshot)
    if source is None:
        findings.add(
            "source_unsupported",
            "The source is not a path on this host.",
            found=shown(uri),
            expected="an absolute path of a directory or an archive, optionally with file://",
        )
        return uri
    try:
        packed = source.is_file()
    except OSError as error:
        findings.add(
            "unreadable", "The source cannot be read.", found=shown(str(error)), expected="a readable path"
        )
        return uri
    if packed:
        _unpack(source, destination, options, findings)
    else:
        if (folder := directory_of(source)) != source:
            source, uri = folder, str(folder)
        check_files(source, max_bytes=options.max_bytes, findings=findings)
        if not findings:
            _copy(source, destination, options, findings)
    return uri


def _unpack(source: Path, destination: Path, options: FetchOptions, findings: Findings) -> None:
    try:
        _open(source.resolve(strict=True)).close()
    except OSError as error:
        _unreadable(source.name, error, findings)
        return
    archive.unpack(
        source, destination, max_bytes=options.max_bytes, findings=findings, progress=options.progress
    )


def _copy(source: Path, destination: Path, options: FetchOptions, findings: Findings) -> None:
    names = [name for name in KNOWN if (source / name).exists()]
    total = sum((source / name).stat().st_size for name in names)
    check_space(destination, total)
    meter = ProgressMeter(FETCHING, options.progress, total)
    staging = StagingArea(destination, options.max_bytes)
    for name in names:
        try:
            file = _open((source / name).resolve(strict=True))
        except OSError as error:
            _unreadable(name, error, findings)
            return
        with file:
            try:
                staging.write(name, _chunks(file, meter))
            except SourceRefusedError as refusal:
                refusal.add_to(findings)
                return


def _chunks(file: BinaryIO, meter: ProgressMeter) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
        meter.add(len(chunk))
    meter.tell()


def _unreadable(name: str, error: OSError, findings: Findings) -> None:
    findings.add("unreadable", f"{name} cannot be read.", found=shown(str(error)), expected="a readable file")


def _path(uri: str) -> Path | None:
    if uri[:5].lower() == "file:":
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        uri = unquote(parts.path)
    return Path(uri) if uri.startswith("/") and "\0" not in uri else None


def _snapshot(directory: Path) -> Path:
    """For a repository in the Hub's cache (`models--OWNER--REPO`), the snapshot of its main branch or its
    only snapshot. Otherwise the directory itself."""
    if not directory.name.startswith("models--"):
        return directory
    try:
        main = (directory / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        main = ""
    try:
        commits = [path.name for path in (directory / "snapshots").iterdir()]
    except OSError:
        return directory
    if main not in commits and len(commits) != 1:
        return directory
    return directory / "snapshots" / (main if main in commits else commits[0])


def _open(path: Path) -> BinaryIO:
    """Open without following a link created since the checks and without blocking on a pipe."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(f"{path} changed while it was being registered")
