"""Two gateways on one Redis that do not share a ledger.

Source: a day of operations
Sent: a second gateway on the same Redis with an SQLite ledger of its own; 518 requests, 259 in each file
Right: the second one is refused at start, with both ledgers named, unless FLORIN_SEPARATE_LEDGERS=true; then
`doctor`, the log, reports, files and the console of both say that not all records are here, and no gateway closes
a month unless it was told so, too. Gateways that share a ledger hear nothing of it
Why: each ledger, report and bill had half of the records, idle time was billed twice, and nothing said so
"""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from gateway.runtime import gateways
from gateway.runtime.gateways import MISSING
from tests.integration.test_cli import florin
from tests.integration.test_doctor import doctor
from tests.support.commands import command
from tests.support.console import Browser
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(gateways, name, 0.05)


async def test_books_are_not_split_in_silence(tmp_path, valkey_url, prefix, caplog):
    async with running_gateway(tmp_path / "one", valkey_url, prefix, separate_ledgers=False) as one:
        env = {"FLORIN_REDIS_URL": valkey_url, "FLORIN_REDIS_PREFIX": prefix, "FLORIN_PORT": "0"}
        refused = await asyncio.to_thread(florin, "serve", FLORIN_STATE_DIR=str(tmp_path / "two"), **env)
        assert refused.returncode == 1
        assert "FLORIN_SEPARATE_LEDGERS=true" in refused.stderr
        assert all(str(tmp_path / name / "ledger.db") in refused.stderr for name in ("one", "two"))
        assert not caplog.text, "one that may not serve splits no books"

        shared = f"sqlite:///{tmp_path / 'one' / 'ledger.db'}"
        async with running_gateway(
            tmp_path / "three", valkey_url, prefix, separate_ledgers=False, ledger_url=shared
        ) as three:
            await until(lambda: len(one.state.gateways.all) == len(three.state.gateways.all) == 2)
            for gateway in (one, three):
                _, findings = await doctor(gateway)
                assert "ledgers_differ" not in findings
                assert "missing" not in await costs(gateway)

        caplog.clear()
        async with running_gateway(tmp_path / "two", valkey_url, prefix) as two:
            await until(lambda: one.state.gateways.missing and two.state.gateways.missing)
            await until(lambda: caplog.text.count("keeps its usage records in") == 2)
            for gateway, other in ((one, "two"), (two, "one")):
                await says_so(gateway, str(tmp_path / other / "ledger.db"))
            async with one.http() as client:
                refused = await client.post("/finance/v1/periods/2026-01/close", json={"policy": "none"})
            assert (refused.status_code, refused.json()["error"]["message"]) == (409, MISSING)
        await until(lambda: not one.state.gateways.missing)


async def costs(gateway: Gateway) -> dict:
    async with gateway.http() as client:
        return (await client.get("/finance/v1/costs")).json()


async def says_so(gateway: Gateway, ledger: str) -> None:
    code, findings = await doctor(gateway)
    assert (code, findings["ledgers_differ"]["status"]) == (1, "problem")
    assert ledger in findings["ledgers_differ"]["message"]
    report = await costs(gateway)
    assert (report["complete"], report["missing"]) == (False, MISSING)
    async with gateway.http() as client:
        for path in ("/finance/v1/costs?format=csv", "/finance/v1/export?month=2026-01&format=csv"):
            file = await client.get(path)
            assert (file.headers["x-florin-complete"], file.headers["x-florin-missing"]) == ("false", MISSING)
    printed = await command(gateway, "cost", "report")
    assert "Not all records are here" in printed.stderr
    async with Browser(base_url=gateway.url, timeout=httpx2.Timeout(60)) as browser:
        await browser.sign_in(OPERATOR_KEY)
        assert MISSING in await browser.page("/console/money")
