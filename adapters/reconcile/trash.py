"""The way out of the artifact store: taken away by one rename, looked at once more, then deleted or put back.

    root/.trash/<digest hex>.<random>/   taken away, not yet decided on
    root/.trash/dead.<random>/           decided on: half of it may be gone already

Whoever publishes content that is there already freshens its directory, and finds out if it has been taken
away. So, of a publication and a removal of one content at once: either the publisher finds it gone and puts
its own copy there, or the remover finds it fresh and puts it back. The hour is for what lies between the
publication and the registration of a version, and for clocks that differ.
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


class Trash:
    """Methods block on the disk and raise OSError. `clock`: seconds, as the files' times."""

    def __init__(self, artifacts: ArtifactStore, *, clock: Callable[[], float] = time.time) -> None:
        self._artifacts = artifacts
        self._root = artifacts.root
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Trash of {self._root}>"

    def holds(self, digest: str, path: str) -> bool:
        """Whether `path` is where this store keeps the content of that digest: only then it may go."""
        return Path(path) == self._root / digest.removeprefix("sha256:")

    def take(self, digest: str) -> bool | None:
        """Take the content away, to be settled. False: it stays, for it was published lately, or another
        installation may need it. None: nothing is there."""
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

    def has(self, digest: str) -> bool:
        return (self._root / digest.removeprefix("sha256:")).exists()

    def empty(self) -> bool:
        return not self._entries()

    def settle(self, needed: Callable[[str], bool]) -> set[str]:
        """Put back what `needed` (of a digest) asks for, what somebody freshened before it was taken, and all
        where another installation has come; delete the rest, also what a process that died has left here.
        The digests that were deleted."""
        deleted = set()
        for entry in self._entries():
            with suppress(FileNotFoundError):  # another process settled it at the same moment
                match = _ENTRY.fullmatch(entry.name)
                if match is None:
                    if entry.name.startswith("dead."):
                        shutil.rmtree(entry)
                elif self._artifacts.others() or needed(f"sha256:{match[1]}") or self._fresh(entry):
                    self._put_back(entry, match[1])
                else:
                    self._delete(entry)
                    deleted.add(f"sha256:{match[1]}")
        return deleted

    def _delete(self, entry: Path) -> None:
        """What is half deleted must not be put back: the first file that goes makes its directory fresh."""
        dead = entry.with_name(f"dead.{secrets.token_hex(8)}")
        entry.rename(dead)
        shutil.rmtree(dead)

    def _entries(self) -> list[Path]:
        try:
            return sorted((self._root / _TRASH).iterdir())
        except FileNotFoundError:
            return []

    def _put_back(self, entry: Path, hexdigest: str) -> None:
        try:
            entry.rename(self._root / hexdigest)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._delete(entry)  # its like has been published meanwhile

    def _fresh(self, directory: Path) -> bool:
        """Also what comes from the future: some clock is wrong, and time will tell."""
        return self._clock() - directory.stat().st_mtime < FRESH_SECONDS
