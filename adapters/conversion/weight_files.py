"""Reads tensors from safetensors files by rows, and writes such files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapters.checks.safetensors_header import read_header
from adapters.conversion.arrays import STORED, Floats, decode, encode


@dataclass(frozen=True, slots=True)
class StoredTensor:
    path: Path
    dtype: str
    """In safetensors' notation: `BF16`."""
    shape: tuple[int, ...]
    offset: int
    """Where its weights begin, in bytes from the beginning of the file."""

    @property
    def readable(self) -> bool:
        """Whether its type is one of floating point that can be decoded."""
        return self.dtype in STORED

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def rows(self, start: int, stop: int) -> Floats:
        """These rows. Raises OSError."""
        width = math.prod(self.shape[1:])
        kind = np.dtype(STORED[self.dtype])
        with self.path.open("rb") as file:
            file.seek(self.offset + start * width * kind.itemsize)
            stored = np.fromfile(file, kind, (stop - start) * width)
        if stored.size != (stop - start) * width:
            raise OSError(f"{self.path} was truncated while it was read.")
        return decode(stored, self.dtype).reshape(stop - start, *self.shape[1:])

    def all(self) -> Floats:
        return self.rows(0, self.shape[0])

    def overwrite(self, path: Path, start: int, values: Floats) -> None:
        """Write `values` over the rows from `start` on, in `path`, a copy of this tensor's file."""
        width = math.prod(self.shape[1:])
        kind = np.dtype(STORED[self.dtype])
        with path.open("r+b") as file:
            file.seek(self.offset + start * width * kind.itemsize)
            file.write(encode(values, self.dtype).tobytes())


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Raises HeaderError, OSError."""
    return {
        name: StoredTensor(path, tensor.dtype, tensor.shape, tensor.offset)
        for name, tensor in read_header(path).items()
    }


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[np.generic]], dtype: str, metadata: Mapping[str, str]
) -> None:
    """`tensors` are encoded as `dtype`. Sorted by name, so that the same weights make the same file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, array in sorted(tensors.items()):
        header[name] = {
            "dtype": dtype, "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]
        }  # fmt: skip
        position += array.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, array in sorted(tensors.items()):
            file.write(np.ascontiguousarray(array).tobytes())
        file.flush()
        os.fsync(file.fileno())
