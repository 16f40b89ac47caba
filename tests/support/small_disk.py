"""A disk that can be filled: a file system of its own, of a few megabytes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.missing import absent


@dataclass(frozen=True)
class SmallDisk:
    path: Path

    def fill(self) -> None:
        """To the last byte."""
        file = os.open(self.path / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(file, bytes(size))
        finally:
            os.close(file)
        assert self.is_full()

    def is_full(self) -> bool:
        found = os.statvfs(self.path)
        return found.f_bavail == 0

    def free(self) -> None:
        (self.path / "filler").unlink()


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """An ext4 in a file, or memory where there are no loop devices. Skips the test where nothing may be
    mounted."""
    path.mkdir(parents=True)
    image = path.with_name(f"{path.name}.ext4")
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    try:
        try:
            # Nothing reserved for root: the disk is full for all at once.
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(path))
        except (OSError, subprocess.CalledProcessError):
            _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "florin-test", str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        absent(f"a file system cannot be mounted here: {getattr(error, 'stderr', error)}")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
