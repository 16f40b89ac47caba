"""A wall clock that steps and a disk that is slow, for the processes of one gateway and nobody else.

Nothing but a library under the C library can do that to a program as it is; so it is compiled here, from
`shim.c`, where there is a C compiler.
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
    """The library; None without a compiler."""
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
    """What one gateway's processes are told. Mutable: that."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)
        self.environment = {"LD_PRELOAD": str(library), "FLORIN_CHAOS_CONTROL": str(control)}

    def say(self, *, clock_s: int = 0, sync_s: float = 0.0, write_s: float = 0.0) -> None:
        """From now on; without arguments, everything is as it should be."""
        _CONTROL.pack_into(self._map, 0, clock_s, int(sync_s * 1e6), int(write_s * 1e6))

    def close(self) -> None:
        self._map.close()
