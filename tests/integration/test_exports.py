"""Exports and statements over HTTP and from the command line, from a gateway that runs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pyarrow import parquet

from gateway.costs.export.files import Order, export
from tests.support.harness import OPERATOR_KEY
from tests.unit.gateway.costs.export.month import MONTH, fill
from tests.unit.gateway.costs.rolled import row, write

FLORIN = str(Path(sys.executable).parent / "florin")


@pytest.fixture
async def billed(gateway, tmp_path):
    """A gateway whose ledger has a month of three tenants, and a folder of its own for the files of exports."""
    gateway.state.spool.folder = tmp_path / "exports"
    gateway.state.spool.folder.mkdir()
    for tenant in ("acme", "bolt", "corgi"):
        await gateway.add_tenant(tenant)
    await asyncio.to_thread(fill, gateway.state.ledger)
    return gateway


async def get(gateway, path: str, key: str | None = None, **params: str) -> httpx.Response:
    async with gateway.http(key) as http:
        return await http.get(f"/finance/v1/{path}", params=params)


async def florin(gateway, *args: str, cwd: Path, key: str = OPERATOR_KEY) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLORIN_")}
    env |= {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": key}
    return await asyncio.to_thread(
        subprocess.run,
        [FLORIN, *args],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.text)))


def of_ledger(gateway, tmp_path: Path, kind: str, dataset: str) -> bytes:
    path = tmp_path / "expected"
    path.touch()
    export(gateway.state.ledger, Order(MONTH, kind, dataset, "Florin"), path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["focus-1.2", "focus-1.4", "csv"])
@pytest.mark.parametrize("dataset", ["infrastructure", "chargeback"])
async def test_the_api_sends_the_file(billed, tmp_path, kind, dataset):
    answer = await get(billed, "export", month=MONTH, format=kind, dataset=dataset)
    assert answer.status_code == 200
    assert answer.content == of_ledger(billed, tmp_path, kind, dataset)
    assert int(answer.headers["x-florin-rows"]) == len(rows(answer))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert f"florin-{MONTH}-{dataset}-" in answer.headers["content-disposition"]


async def test_a_tenant_gets_its_own_chargeback_and_nothing_else(billed):
    key = billed.keys["bolt"]
    for params in ({}, {"tenant": "bolt"}, {"format": "csv"}, {"format": "focus-1.4"}):
        found = rows(await get(billed, "export", key, month=MONTH, **params))
        assert {line.get("SubAccountId") or line["tenant"] for line in found} == {"bolt"}
    assert rows(await get(billed, "export", key, month=MONTH, tenant="acme")) == []
    refused = await get(billed, "export", key, month=MONTH, dataset="infrastructure")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_role")


async def test_a_missing_price_refuses_and_leaves_no_file(billed):
    await asyncio.to_thread(write, billed.state.ledger, {**row(), "posted": MONTH, "gpu_type": "B200"})
    answer = await get(billed, "export", month=MONTH)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "missing_price")
    assert "B200 (on_demand)" in answer.json()["error"]["message"]
    assert list(billed.state.spool.folder.iterdir()) == []


async def test_no_file_is_left_after_an_export(billed):
    assert (await get(billed, "export", month=MONTH)).status_code == 200
    assert list(billed.state.spool.folder.iterdir()) == []


@pytest.mark.parametrize(
    "params", [{"month": "2026-13"}, {"month": MONTH, "format": "xls"}, {"month": MONTH, "dataset": "x"}, {}]
)
async def test_what_cannot_be_exported_is_said(billed, params):
    answer = await get(billed, "export", **params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


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


async def test_a_statement_is_divided_for_its_tenant_and_for_staff(billed):
    key = billed.keys["bolt"]
    answers = [
        await get(billed, "statements/bolt", k, month=MONTH, by="key", format="json") for k in (key, None)
    ]
    document = answers[0].json()
    assert answers[1].json() == {**document, "dated": answers[1].json()["dated"]}
    division = document["division"]
    rest = division["unused_time_cents"] + division["other_cents"]
    assert sum(row["amount_cents"] for row in division["rows"]) + rest == document["amount_cents"]
    assert all("label" in row for row in division["rows"])
    table = await get(billed, "statements/bolt", key, month=MONTH, by="tag", format="csv")
    assert (table.status_code, table.headers["content-type"].partition(";")[0]) == (200, "text/csv")
    assert table.text.startswith("statement,state,line,name,")
    wrong = await get(billed, "statements/bolt", key, month=MONTH, by="engine")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "by")


async def test_files_for_other_tools_are_for_staff(billed):
    for kind, first in (("cloudzero", "lineitem/type,"), ("vantage", "ChargePeriodStart,")):
        made = await get(billed, "export", month=MONTH, format=kind)
        assert made.status_code == 200
        assert made.text.startswith(first)
        hidden = await get(billed, "export", billed.keys["bolt"], month=MONTH, format=kind)
        assert (hidden.status_code, hidden.json()["error"]["code"]) == (403, "insufficient_role")
        packed = await get(billed, "export", month=MONTH, format=kind, parquet="true")
        assert (packed.status_code, packed.json()["error"]["param"]) == (400, "parquet")


async def test_another_s_statement_and_none_are_alike(billed):
    key = billed.keys["bolt"]
    other = await get(billed, "statements/acme", key, month=MONTH)
    none = await get(billed, "statements/nobody", key, month=MONTH)
    assert other.status_code == none.status_code == 404
    assert other.text.replace("acme", "nobody") == none.text
    assert (await get(billed, "statements/nobody", month=MONTH)).status_code == 404
    assert (await get(billed, "statements/bolt", month="x")).status_code == 400


async def test_a_known_tenant_without_usage_gets_an_empty_statement(billed):
    await billed.add_tenant("echo")
    answer = await get(billed, "statements/echo", month=MONTH)
    assert answer.status_code == 200
    assert "No usage." in answer.text


class TestCommands:
    async def test_export_writes_the_file_whole(self, billed, tmp_path):
        done = await florin(
            billed, "cost", "export", "--month", MONTH, "--dataset", "infrastructure", "--output", "o.csv",
            "--json", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        written = (tmp_path / "o.csv").read_bytes()
        assert written == of_ledger(billed, tmp_path, "focus-1.2", "infrastructure")
        body = json.loads(done.stdout)
        assert body["file"] == "o.csv"
        assert body["bytes"] == len(written)
        assert body["rows"] == len(list(csv.reader(io.StringIO(written.decode())))) - 1

    async def test_parquet(self, billed, tmp_path):
        done = await florin(
            billed, "cost", "export", "--month", MONTH, "--format", "focus-1.4", "--parquet", "-o", "o.parquet",
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "AllocatedMethodId" in parquet.read_table(tmp_path / "o.parquet").column_names

    async def test_a_refusal_leaves_the_old_file(self, billed, tmp_path):
        (tmp_path / "o.csv").write_text("old")
        args = ("cost", "export", "--month", "2026-13", "--output", "o.csv")
        done = await florin(billed, *args, cwd=tmp_path)
        assert done.returncode == 1
        assert "is not a month like 2026-11" in done.stderr
        assert (tmp_path / "o.csv").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["o.csv"]

    async def test_wrong_usage_is_said(self, billed, tmp_path):
        done = await florin(
            billed, "cost", "export", "--month", MONTH, "--format", "x", "-o", "o", cwd=tmp_path
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "--format 'x' is not one of" in done.stderr
        nowhere = ("cost", "export", "--month", MONTH, "-o", "no/such/place.csv")
        done = await florin(billed, *nowhere, cwd=tmp_path)
        assert done.returncode == 2
        assert "Cannot write" in done.stderr
        assert "no/such/place.csv" in done.stderr

    async def test_statement(self, billed, tmp_path):
        args = ("cost", "statement", "--tenant", "acme", "--month", MONTH)
        done = await florin(billed, *args, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "<h1>acme</h1>" in (tmp_path / f"acme-{MONTH}.html").read_text("utf-8")

    async def test_a_tenant_s_key_works_too(self, billed, tmp_path):
        args = ("cost", "statement", "--tenant", "acme", "--month", MONTH)
        done = await florin(billed, *args, cwd=tmp_path, key=billed.keys["bolt"])
        assert done.returncode == 1
        assert "No statement for 'acme'." in done.stderr
