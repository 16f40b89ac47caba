"""Exports and statements over HTTP and from the command line, from a gateway that runs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from itertools import product
from pathlib import Path

import httpx2
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from gateway.commands.tree import tree
from gateway.costs.export.files import Order, export
from tests.support.harness import OPERATOR_KEY
from tests.unit.gateway.costs.export.month import MONTH, fill


@pytest.fixture
async def billed(gateway, tmp_path):
    """A gateway whose ledger has a month of three tenants, and a folder of its own for the files of exports."""
    gateway.state.spool.folder = tmp_path / "exports"
    gateway.state.spool.folder.mkdir()
    for tenant in ("acme", "bolt", "corgi"):
        await gateway.add_tenant(tenant, since=0)
    await asyncio.to_thread(fill, gateway.state.ledger)
    return gateway


async def get(gateway, path: str, key: str | None = None, **params: str) -> httpx2.Response:
    async with gateway.http(key) as http:
        return await http.get(f"/finance/v1/{path}", params=params)


@pytest.fixture
def florin(billed, tmp_path, monkeypatch):
    """Runs the command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    async def run(*args: str, key: str = OPERATOR_KEY) -> Result:
        env = {"FLORIN_URL": billed.url, "FLORIN_OPERATOR_KEY": key}
        return await asyncio.to_thread(CliRunner().invoke, tree(), args, env=env)

    return run


def rows(answer: httpx2.Response) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.text)))


def of_ledger(gateway, tmp_path: Path, kind: str, dataset: str) -> bytes:
    path = tmp_path / "expected"
    path.touch()
    export(gateway.state.ledger, Order(MONTH, kind, dataset, "Florin"), path)
    return path.read_bytes()


async def test_the_api_sends_the_file_and_leaves_none(billed, tmp_path, subtests):
    for kind, dataset in product(("focus-1.2", "focus-1.4", "csv"), ("infrastructure", "chargeback")):
        with subtests.test(kind=kind, dataset=dataset):
            answer = await get(billed, "export", month=MONTH, format=kind, dataset=dataset)
            assert answer.status_code == 200
            assert answer.content == of_ledger(billed, tmp_path, kind, dataset)
            assert int(answer.headers["x-florin-rows"]) == len(rows(answer))
            assert answer.headers["content-type"] == "text/csv; charset=utf-8"
            assert f"florin-{MONTH}-{dataset}-" in answer.headers["content-disposition"]
            assert list(billed.state.spool.folder.iterdir()) == []


async def test_a_tenant_gets_its_own_chargeback_and_nothing_else(billed):
    key = billed.keys["bolt"]
    for params in ({}, {"tenant": "bolt"}, {"format": "csv"}, {"format": "focus-1.4"}):
        found = rows(await get(billed, "export", key, month=MONTH, **params))
        assert {line.get("SubAccountId") or line["tenant"] for line in found} == {"bolt"}
    assert rows(await get(billed, "export", key, month=MONTH, tenant="acme")) == []
    refused = await get(billed, "export", key, month=MONTH, dataset="infrastructure")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_role")


async def test_what_cannot_be_exported_is_said(billed):
    for params in (
        {"month": "2026-13"},
        {"month": MONTH, "format": "xls"},
        {"month": MONTH, "dataset": "x"},
        {},
    ):
        answer = await get(billed, "export", **params)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value"), params


async def test_a_statement_is_its_tenant_s(billed):
    key = billed.keys["bolt"]
    own = await get(billed, "statements/bolt", key, month=MONTH)
    assert own.status_code == 200
    assert own.headers["content-type"] == "text/html; charset=utf-8"
    assert own.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<h1>bolt</h1>" in own.text
    staff = await get(billed, "statements/bolt", month=MONTH)
    assert staff.text == own.text
    async with billed.http(key) as http:
        http.headers["if-none-match"] = own.headers["etag"]
        again = await http.get("/finance/v1/statements/bolt", params={"month": MONTH})
    assert (again.status_code, again.content) == (304, b"")


async def test_files_for_other_tools_are_for_staff(billed):
    for kind, first in (("cloudzero", "lineitem/type,"), ("vantage", "ChargePeriodStart,")):
        made = await get(billed, "export", month=MONTH, format=kind)
        assert made.status_code == 200
        assert made.text.startswith(first)
        hidden = await get(billed, "export", billed.keys["bolt"], month=MONTH, format=kind)
        assert (hidden.status_code, hidden.json()["error"]["code"]) == (403, "insufficient_role")
        packed = await get(billed, "export", month=MONTH, format=kind, parquet="true")
        assert (packed.status_code, packed.json()["error"]["param"]) == (400, "parquet")


async def test_commands_write_files_whole(billed, florin, tmp_path):
    done = await florin(
        "cost", "export", "--month", MONTH, "--dataset", "infrastructure", "--output", "o.csv", "--json"
    )
    assert done.exit_code == 0, done.stderr
    written = (tmp_path / "o.csv").read_bytes()
    assert written == of_ledger(billed, tmp_path, "focus-1.2", "infrastructure")
    body = json.loads(done.stdout)
    assert body["file"] == "o.csv"
    assert body["bytes"] == len(written)
    assert body["rows"] == len(list(csv.reader(io.StringIO(written.decode())))) - 1
    packed = ("cost", "export", "--month", MONTH, "--format", "focus-1.4", "--parquet", "-o", "o.parquet")
    done = await florin(*packed)
    assert done.exit_code == 0, done.stderr
    assert "AllocatedMethodId" in parquet.read_table(tmp_path / "o.parquet").column_names
    statement = ("cost", "statement", "--tenant", "acme", "--month", MONTH)
    done = await florin(*statement)
    assert done.exit_code == 0, done.stderr
    assert "<h1>acme</h1>" in (tmp_path / f"acme-{MONTH}.html").read_text("utf-8")
    done = await florin(*statement, key=billed.keys["bolt"])
    assert done.exit_code == 1
    assert "No statement for 'acme'." in done.stderr


async def test_a_command_that_is_refused_leaves_the_old_file(florin, tmp_path):
    (tmp_path / "o.csv").write_text("old")
    export_to = ("cost", "export", "-o")
    for args, status, words in (
        (("o.csv", "--month", "2026-13"), 1, "is not a month like 2026-11"),
        (("o.csv", "--month", MONTH, "--format", "x"), 2, "--format 'x' is not one of"),
        (("no/such/place.csv", "--month", MONTH), 2, "Cannot write"),
    ):
        done = await florin(*export_to, *args)
        assert (done.exit_code, done.stdout) == (status, ""), args
        assert words in done.stderr
        assert (tmp_path / "o.csv").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["o.csv"]
    assert "no/such/place.csv" in done.stderr
