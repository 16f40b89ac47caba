"""Files that hold secrets, and directories that hold state: for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotPrivateError(Exception):
    """Others may read the file; the message names it and the remedy."""


def read_secret(path: Path, *, limit: int = 64 * 1024) -> bytes:
    """The content of a key or token file that only its owner may read. As with PostgreSQL, a file of root's
    may be readable for a group (0640), which is how secrets are mounted for a service's user. Raises
    NotPrivateError, OSError."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        ours = found.st_uid == os.geteuid()
        if found.st_mode & (0o077 if ours or found.st_uid else 0o027):
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            raise NotPrivateError(f"{path} has mode {mode}, so others can read it: chmod 600 {path}")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(0, f"larger than {limit} bytes", str(path))
    return content
