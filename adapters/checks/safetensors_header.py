"""Reads the header of a safetensors file without touching its weights.

The safetensors library is not used, because it maps the file into memory and says little about what is wrong
with it. The rules here are those of the library (`Metadata::validate`) plus a few stricter ones. A property
test ensures that the library accepts every file that passes here, with the same names, types and shapes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Never

MAX_HEADER_BYTES = 16 * 1024 * 1024
"""The library allows 100 MB. The largest adapters have about ten thousand tensors of 150 header bytes
each."""

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip

MAX_TENSORS = 50_000
MAX_NAME = 512
"""Characters. What is checked of an adapter takes time for each tensor and for each character of its name."""
_MAX_DIMENSIONS = 8


class HeaderError(Exception):
    """The file is not a valid safetensors file; the message says why, in a sentence."""

    code = "header_invalid"
    expected = "a complete file written by the safetensors library"


class TooManyTensorsError(HeaderError):
    code = "too_many_tensors"
    expected = f"at most {MAX_TENSORS:,} tensors"


class NameTooLongError(HeaderError):
    code = "tensor_name_too_long"
    expected = f"names of at most {MAX_NAME} characters"


class NotGatheredError(HeaderError):
    code = "weights_not_gathered"
    expected = "weights in every tensor"


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    """In safetensors' notation: `F16`."""
    shape: tuple[int, ...]
    offset: int = 0
    """Position of its weights, in bytes from the beginning of the file."""


def unique_pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads(object_pairs_hook=…)`: refuses repeated keys, which parsers resolve differently."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:80]!r} occurs twice")
        result[key] = value
    return result


def no_constants(name: str) -> Never:
    """For `json.loads(parse_constant=…)`: refuses NaN and the infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def read_header(path: Path) -> dict[str, Tensor]:
    """Name → type and shape of every tensor in the file. Raises HeaderError, OSError."""
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise HeaderError(f"The file has {total} bytes, too few for a header.")
        length = int.from_bytes(prefix, "little")
        if length > min(MAX_HEADER_BYTES, total - 8):
            raise HeaderError(f"The header claims {length} bytes; the file has {total} bytes in all.")
        raw = file.read(length)
    entries = _parse(raw)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise HeaderError("The header's __metadata__ is not a mapping of strings.")
    return _tensors(entries, 8 + length, total)


def _parse(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise HeaderError("The header is not a JSON object.")
    try:
        entries: dict[str, Any] = json.loads(
            raw.decode(), object_pairs_hook=unique_pairs, parse_constant=no_constants
        )
        json.dumps(entries, ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"The header is not valid JSON: {str(error)[:200]}.") from error
    return entries


def _tensors(entries: dict[str, Any], data_begin: int, total: int) -> dict[str, Tensor]:
    """Check every entry, then that together they fill the file without gaps or overlaps."""
    if len(entries) > MAX_TENSORS:
        raise TooManyTensorsError(f"The header has {len(entries):,} tensors.")
    if (longest := max(entries, key=len, default="")) and len(longest) > MAX_NAME:
        raise NameTooLongError(f"Tensor {longest[:40]!r}… has a name of {len(longest):,} characters.")
    data_bytes = total - data_begin
    tensors = {}
    spans = []
    for name, entry in entries.items():
        tensor, begin, end = _tensor(name, entry)
        tensors[name] = replace(tensor, offset=data_begin + begin)
        spans.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            raise HeaderError(
                f"Tensor {name[:120]!r} begins at byte {begin} of the data instead of {position}."
            )
        position = end
    if position != data_bytes:
        raise HeaderError(
            f"The tensors take {position} bytes, but the file has {data_bytes} after the header."
        )
    return tensors


def _tensor(name: str, entry: Any) -> tuple[Tensor, int, int]:
    shown = name[:120]
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"Tensor {shown!r} must have exactly dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise HeaderError(f"Tensor {shown!r} has the unknown dtype {str(dtype)[:40]!r}.")
    if _are_counts(shape) and 0 in shape:
        raise NotGatheredError(f"Tensor {shown!r} has the shape {shape[:_MAX_DIMENSIONS]}.")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise HeaderError(f"Tensor {shown!r} has an invalid shape.")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise HeaderError(f"Tensor {shown!r} has invalid data_offsets.")
    begin, end = offsets
    if end - begin != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise HeaderError(f"Tensor {shown!r} of shape {shape} and dtype {dtype} has {end - begin} bytes.")
    return Tensor(dtype, tuple(shape)), begin, end


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**48 for v in values)
