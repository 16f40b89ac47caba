"""Removes content from the artifact store: detach it by a rename, check again, then delete or restore it.

    root/.trash/<digest hex>.<random>/   detached, not yet decided
    root/.trash/dead.<random>/           being deleted, possibly incomplete

Publishing content that already exists updates its directory's modification time and fails if the directory
has been detached. If the same content is published and removed concurrently, then either the publisher finds
it missing and writes its own copy, or the remover finds it fresh and restores it. The freshness of one hour
covers the time between publication and registration of a version, and clock differences.
"""

from __future__ import annotations

import errno
import re
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from adapters.registry.artifacts import ArtifactStore

FRESH_SECONDS = 3600.0
_TRASH = ".trash"
_ENTRY = re.compile(r"([0-9a-f]{64})\.[0-9a-f]+")


class ArtifactRemover:
    """See `removers.Remover`. `clock`: Unix seconds."""

    def __init__(self, artifacts: ArtifactStore, *, clock: Callable[[], float] = time.time) -> None:
        self._artifacts = artifacts
        self._root = artifacts.root
        self._clock = clock

    def __repr__(self) -> str:
        return f"<ArtifactRemover of {self._root}>"

    def holds(self, digest: str, path: str) -> bool:
        return Path(path) == self._root / digest.removeprefix("sha256:")

    def detach(self, digest: str) -> bool | None:
        hexdigest = digest.removeprefix("sha256:")
        source = self._root / hexdigest
        try:
            if self._fresh(source) or self._artifacts.others():
                return False
            trash = self._root / _TRASH
            trash.mkdir(mode=0o700, exist_ok=True)
            source.rename(trash / f"{hexdigest}.{secrets.token_hex(4)}")
        except FileNotFoundError:
            return None
        return True

    def exists(self, digest: str) -> bool:
        return (self._root / digest.removeprefix("sha256:")).exists()

    def is_empty(self) -> bool:
        return not self._entries()

    def delete_or_restore(self, needed: Callable[[str], bool]) -> set[str]:
        deleted = set()
        for entry in self._entries():
            with suppress(FileNotFoundError):  # another process handled it at the same moment
                match = _ENTRY.fullmatch(entry.name)
                if match is None:
                    if entry.name.startswith("dead."):
                        shutil.rmtree(entry)
                elif self._artifacts.others() or needed(f"sha256:{match[1]}") or self._fresh(entry):
                    self._restore(entry, match[1])
                else:
                    self._delete(entry)
                    deleted.add(f"sha256:{match[1]}")
        return deleted

    def _delete(self, entry: Path) -> None:
        """Rename first: deleting a file freshens the directory, and a half-deleted one must not be
        restored."""
        dead = entry.with_name(f"dead.{secrets.token_hex(8)}")
        entry.rename(dead)
        shutil.rmtree(dead)

    def _entries(self) -> list[Path]:
        try:
            return sorted((self._root / _TRASH).iterdir())
        except FileNotFoundError:
            return []

    def _restore(self, entry: Path, hexdigest: str) -> None:
        try:
            entry.rename(self._root / hexdigest)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._delete(entry)  # the same content has been published meanwhile

    def _fresh(self, directory: Path) -> bool:
        """Modification times in the future count as fresh: some clock is wrong."""
        return self._clock() - directory.stat().st_mtime < FRESH_SECONDS
