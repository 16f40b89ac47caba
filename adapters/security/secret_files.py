"""Reads secrets only from private files, and writes them so that they are private from the start.

A key file contains the key in its first line that is neither empty nor a comment (`#`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

MAX_BYTES = 4096
_OTHERS = 0o077
_GROUP_READ = stat.S_IRGRP


class KeyFileError(Exception):
    """The file cannot be used; the message says why and how to fix it."""


def read_key(path: Path) -> str:
    """Return the key in the file. Raises KeyFileError if it is missing, empty or accessible to others."""
    lines = [line.strip() for line in read_private(path).splitlines()]
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not key:
        raise KeyFileError(f"{path} contains no key: write the key on a line of its own.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise KeyFileError(f"{path} contains characters that are not valid in a key: copy the key again.")
    return key


def read_private(path: Path) -> str:
    """Return the contents of a small text file that only its owner can read. It may also be group-readable if
    root owns it, as mounted secrets are, or if its group has the same number as its owner, as the tokens that
    Kubernetes mounts for service accounts do. Raises KeyFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        _check(path, os.fstat(descriptor))  # checks the opened file, so that it cannot be swapped
        content = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise KeyFileError(f"{path} is not a key file: it is larger than {MAX_BYTES} bytes.")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{path} is not a key file: it is not ASCII.") from error


def write_private(path: Path, text: str) -> None:
    """Write atomically, with mode 0600 from the start, creating the directory with mode 0700. Raises
    OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    _sync_directory(path.parent)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path} is not a file.")
    shared = status.st_mode & _OTHERS
    if status.st_uid in {0, status.st_gid}:
        shared &= ~_GROUP_READ
    if shared:
        mode = stat.S_IMODE(status.st_mode)
        raise KeyFileError(
            f"{path} must be private but is accessible to others (mode {mode:04o}): chmod 600 {path}"
        )
    if status.st_uid not in {0, os.geteuid()} and os.geteuid() != 0:
        raise KeyFileError(f"{path} belongs to another user, who could replace the key: chown it.")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NotPrivateError(Exception):
    """Others can read the file; the message names it and the remedy."""


def read_secret(path: Path, *, limit: int = 64 * 1024) -> bytes:
    """Return the contents of a key or token file that only its owner can read. As in PostgreSQL, a file owned
    by root may be group-readable (0640), because secrets are mounted that way for service users. Raises
    NotPrivateError, OSError."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        ours = status.st_uid == os.geteuid()
        if status.st_mode & (0o077 if ours or status.st_uid else 0o027):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise NotPrivateError(f"{path} has mode {mode}, so others can read it: chmod 600 {path}")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(0, f"larger than {limit} bytes", str(path))
    return content
