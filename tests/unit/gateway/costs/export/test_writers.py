"""The files themselves: Parquet against CSV, bounded memory, plain lines."""

from __future__ import annotations

import csv
import io
import tracemalloc
from decimal import Decimal

import pytest
from pyarrow import parquet

from gateway.costs.export.cells import Fixed
from gateway.costs.export.columns import Column, focus, plain
from gateway.costs.export.files import Order, export
from gateway.costs.export.writers import write_csv, write_parquet
from gateway.costs.periods import iso
from tests.unit.gateway.costs.export.month import MONTH, fill


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


def made(ledger, tmp_path, kind, dataset, *, as_parquet):
    path = tmp_path / "file"
    path.touch()
    count = export(ledger, Order(MONTH, kind, dataset, "Nordlicht", parquet=as_parquet), path)
    if as_parquet:
        return parquet.read_table(path), count
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8")))), count


@pytest.mark.parametrize("kind", ["focus-1.2", "focus-1.4", "csv"])
@pytest.mark.parametrize("dataset", ["infrastructure", "chargeback"])
def test_parquet_says_what_csv_says_to_the_last_unit(ledger, tmp_path, kind, dataset):
    fill(ledger)
    texts, count = made(ledger, tmp_path, kind, dataset, as_parquet=False)
    table, again = made(ledger, tmp_path, kind, dataset, as_parquet=True)
    assert count == again == len(texts) == table.num_rows > 50
    columns = plain() if kind == "csv" else focus(kind[-3:])
    assert table.column_names == [column.name for column in columns] == list(texts[0])
    for column in columns:
        field = table.schema.field(column.name)
        assert field.nullable == column.nullable
        for value, text in zip(table[column.name].to_pylist(), [t[column.name] for t in texts], strict=True):
            match column.kind:
                case _ if value is None:
                    assert text == ""
                case "cost" | "quantity" | "price":
                    assert isinstance(value, Decimal)
                    assert value == Decimal(text)
                case "time":
                    assert iso(int(value.timestamp()) * 1_000_000) == text
                case "boolean":
                    assert str(value).lower() == text
                case _:
                    assert str(value) == text


def test_plain_lines_are_the_ledger_s(ledger, tmp_path):
    rows = fill(ledger)
    texts, _ = made(ledger, tmp_path, "csv", "infrastructure", as_parquet=False)
    for column, name in (("requests", "requests"), ("prompt_tokens", "prompt_tokens")):
        assert sum(int(t[column]) for t in texts) == sum(r[name] for r in rows)
    hours = sum(Decimal(t["gpu_hours"]) for t in texts)
    assert hours == Decimal(sum(r["nano_gpu_hours"] for r in rows)).scaleb(-9)
    assert {t["bucket"] for t in texts} == {r["bucket"] for r in rows}


COLUMNS = (Column("name", "text"), Column("cost", "cost"), Column("same", "text"))


@pytest.mark.parametrize("put", [write_csv, write_parquet])
def test_rows_are_written_as_they_come(tmp_path, put):
    """Memory does not grow with the rows, beyond a batch of ten thousand."""

    def peak(count: int) -> int:
        rows = ({"name": f"row {n}" * 20, "cost": Fixed(n, 15)} for n in range(count))
        tracemalloc.start()
        try:
            with (tmp_path / f"{count}").open("wb") as file:
                assert put(file, COLUMNS, {"same": "x"}, rows) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(48_000) < 2 * peak(12_000)
