"""Tenants' questions run a few at a time and in turn; operators' and analysts' do not wait for them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx2
import pytest

from gateway.api.access_rules import Queue
from gateway.api.tenant_queues import UNREAD, WAITING
from gateway.metering.ledger.ledger import Ledger
from tests.support.harness import Gateway
from tests.support.waiting import until

EMPTY = "<OwnerQueue 0 running, 0 waiting, 0 owners>"


def hold(ledger: Ledger, begun: str, end: str) -> None:
    """Keeps the process that answers tenants busy, as a long report would."""
    Path(begun).touch()
    while not Path(end).exists():
        time.sleep(0.01)


@pytest.fixture
async def busy(gateway: Gateway, tmp_path: Path):
    """A gateway whose process for tenants' questions is busy until the event is set."""
    for tenant in ("acme", "bolt"):
        await gateway.add_tenant(tenant, since=0)
    begun, end = tmp_path / "begun", tmp_path / "end"
    holding = asyncio.create_task(gateway.state.ledger_process.for_tenants().run(hold, str(begun), str(end)))
    await until(begun.exists)
    release = asyncio.Event()

    async def watch() -> None:
        await release.wait()
        end.touch()
        await holding

    watching = asyncio.create_task(watch())
    yield gateway, release
    release.set()
    await watching


def asking(gateway: Gateway, tenant: str, count: int, http: httpx2.AsyncClient) -> list[asyncio.Task]:
    headers = {"authorization": f"Bearer {gateway.keys[tenant]}"}
    paths = ["costs", "usage", "periods", "costs?format=csv", f"statements/{tenant}?month=2026-01"]
    return [
        asyncio.create_task(http.get(f"/finance/v1/{paths[n % len(paths)]}", headers=headers))
        for n in range(count)
    ]


async def test_a_tenant_s_loops_take_its_own_places_and_no_one_else_s(busy):
    gateway, release = busy
    gate, most = gateway.app.gate.queues[Queue.REPORTS], gateway.state.settings.tenant_reports
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        loops = asking(gateway, "acme", 48, http)
        await until(lambda: sum(t.done() for t in loops) == 48 - most - WAITING)
        refused = [t.result() for t in loops if t.done()]
        assert {(r.status_code, r.json()["error"]["code"]) for r in refused} == {(429, "too_many_reports")}
        assert {r.headers["retry-after"] for r in refused} == {"2"}
        assert (gate.queue.running, gate.queue.waiting) == (most, WAITING)

        others = asking(gateway, "bolt", 1, http)  # runs at once beside them
        await until(lambda: gate.queue.running == most + 1)
        async with gateway.http() as operator:  # and is not behind them
            for path in ("costs", "usage", "periods", "export?month=2026-01"):
                assert (await operator.get(f"/finance/v1/{path}")).status_code == 200
        assert (gate.queue.running, gate.queue.waiting) == (most + 1, WAITING)

        release.set()
        answers = await asyncio.gather(*loops, *others)
        assert sum(a.status_code == 200 for a in answers) >= most + 1
        assert {a.status_code for a in answers} <= {200, 404, 429}
    await until(lambda: repr(gate.queue) == EMPTY and gate.open_requests.total() == 0)


async def test_disconnected_client_leaves_the_queue(busy):
    gateway, _ = busy
    gate, most = gateway.app.gate.queues[Queue.REPORTS], gateway.state.settings.tenant_reports
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        loops = asking(gateway, "acme", most + WAITING, http)
        await until(lambda: gate.queue.waiting == WAITING)
        for task in loops:
            task.cancel()
        await asyncio.wait(loops)
    await until(lambda: repr(gate.queue) == EMPTY and gate.open_requests.total() == 0)


async def test_answers_that_are_not_read_are_bounded_too(busy):
    """What is being sent counts against its tenant, so that unread reports do not fill the memory."""
    gateway, release = busy
    release.set()
    gate, most = gateway.app.gate.queues[Queue.REPORTS], gateway.state.settings.tenant_reports
    gate.open_requests["acme"] = most + WAITING + UNREAD - 1
    try:
        async with gateway.http(gateway.keys["acme"]) as http:
            assert (await http.get("/finance/v1/periods")).status_code == 200
            gate.open_requests["acme"] += 1
            refused = await http.get("/finance/v1/periods")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_reports")
    finally:
        gate.open_requests.clear()
