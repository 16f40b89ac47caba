"""Deletes old backups: `florin backup --keep 14`."""

from __future__ import annotations

from pathlib import Path

from adapters.progress import Progress, ProgressMeter, silent
from gateway.installation.backup.operations.archive import BackupError, Manifest, opened, size_of, verify


def prune(out: Path, manifest: Manifest, keep: int, *, progress: Progress = silent) -> list[Path]:
    """Delete all but the newest `keep` backups of this installation: `out`, the new one, and those beside it
    with its suffix. Returns what was deleted.

    The new one is read back first, and only complete backups count: what cannot be read is left alone, and so
    is whatever else lies there. Raises BackupError, OSError."""
    with opened(out) as (archive, _):
        verify(out, archive, manifest, ProgressMeter("checking", progress, size_of(archive)))
    earlier = sorted(
        (taken, path) for path in out.parent.glob(f"*{out.suffix}") if (taken := _taken(path, out, manifest))
    )
    superseded = [path for _, path in earlier[: len(earlier) - (keep - 1)]] if len(earlier) >= keep else []
    for path in superseded:
        path.unlink(missing_ok=True)
    return superseded


def _taken(path: Path, out: Path, manifest: Manifest) -> int | None:
    """When an earlier backup of this installation was taken; None: it is not one."""
    if path == out or path.name.startswith(".") or path.is_symlink() or not path.is_file():
        return None
    try:
        with opened(path) as (_, other):
            return other.at if other.installation == manifest.installation else None
    except BackupError:
        return None
