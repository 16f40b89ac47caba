"""Writes rows to files as they are produced."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from itertools import islice
from typing import Any, BinaryIO, cast

from gateway.costs.export.cells import Cell, Fixed, Row, csv_text
from gateway.costs.export.columns import PLACES, Column
from gateway.costs.periods import instant

_BATCH = 10_000
_EXACT = Context(prec=60)


class ParquetMissingError(Exception):
    """pyarrow is not installed."""


class TooLargeError(Exception):
    """The file would exceed its limit."""


class _Bounded(io.RawIOBase):
    """A file that accepts at most `limit` bytes."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        # Mutable: bytes left. After an overflow, further writes are dropped, because a writer flushes its
        # buffer while it is cleaned up.
        self._left = limit
        self._over = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        if self._over:
            return size
        self._left -= size
        if self._left < 0:
            self._over = True
            raise TooLargeError
        self._file.write(data)
        return size


def bounded(file: BinaryIO, most: int) -> BinaryIO:
    """The file, which raises TooLargeError beyond `most` bytes."""
    return cast("BinaryIO", _Bounded(file, most))


def write_csv(file: BinaryIO, columns: Sequence[Column], constants: Row, rows: Iterable[Row]) -> int:
    """Write CSV: UTF-8, commas, CRLF (RFC 4180), with a header. Returns the number of rows."""
    names = [column.name for column in columns]
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    writer = csv.writer(text)
    writer.writerow(names)
    count = 0
    same = {name: csv_text(cell) for name, cell in constants.items()}
    for row in rows:
        writer.writerow([csv_text(row[name]) if name in row else same.get(name, "") for name in names])
        count += 1
    text.flush()
    text.detach()  # the file is the caller's
    return count


def write_parquet(file: BinaryIO, columns: Sequence[Column], constants: Row, rows: Iterable[Row]) -> int:
    """Write Parquet: decimals as decimal128, times as UTC microseconds, required columns as non-null. Returns
    the number of rows. Raises ParquetMissingError."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415  # no stubs; an extra of the package
        from pyarrow import parquet  # noqa: PLC0415  # likewise
    except ImportError as error:
        raise ParquetMissingError("Parquet needs pyarrow: install 'florin-gateway[parquet]'.") from error
    types: dict[str, Any] = {
        "text": pa.string(),
        "json": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "integer": pa.int64(),
        "boolean": pa.bool_(),
        **{kind: pa.decimal128(38, places) for kind, places in PLACES.items()},
    }
    schema = pa.schema([pa.field(c.name, types[c.kind], nullable=c.nullable) for c in columns])
    count = 0
    ahead = iter(rows)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(ahead, _BATCH)):
            arrays = [pa.array(_values(column, constants, batch), types[column.kind]) for column in columns]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(batch)
    return count


def _values(column: Column, constants: Row, batch: Sequence[Row]) -> list[Any]:
    default = constants.get(column.name)
    return [_value(column, row.get(column.name, default)) for row in batch]


def _value(column: Column, cell: Cell) -> Any:
    if isinstance(cell, Fixed):
        return _EXACT.scaleb(Decimal(cell.units), -cell.places)
    if column.kind == "time" and isinstance(cell, str):
        return instant(column.name, cell)
    return cell
