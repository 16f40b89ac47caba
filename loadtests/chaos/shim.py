"""Steps the wall clock and slows the disk for the processes of one gateway only.

This needs a preloaded library below the C library, which is compiled from `shim.c` if there is a C compiler.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_CONTROL = struct.Struct("=qqq")


def build(directory: Path) -> Path | None:
    """Build the library; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
        check=True, capture_output=True,
    )  # fmt: skip
    return library


class Shim:
    """Controls the shim of one gateway's processes. Mutable: its settings."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)
        self.environment = {"LD_PRELOAD": str(library), "FLORIN_CHAOS_CONTROL": str(control)}

    def say(self, *, clock_s: int = 0, sync_s: float = 0.0, write_s: float = 0.0) -> None:
        """Apply these settings; without arguments, reset them."""
        _CONTROL.pack_into(self._map, 0, clock_s, int(sync_s * 1e6), int(write_s * 1e6))

    def close(self) -> None:
        self._map.close()
