"""That a list of many thousand adapters holds up nobody else: no step of the event loop is long."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from gateway.serving.runner import tune_garbage_collection
from loadtests.scale import registry
from tests.support.console import Browser

PATHS = (
    "/console/adapters",
    "/console/adapters?format=csv",
    "/console/search?q=assistant",
    "/admin/v1/adapters",
    "/admin/v1/export",
)
ADAPTERS = 20_000
STEP_SECONDS = 0.25
"""Processor time. In one step, each of them took twice as much and more; now a third of it."""


class Steps:
    """Mutable: the longest turn of the event loop, in processor seconds of its thread."""

    longest = 0.0

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest, before = max(self.longest, now - before), now


@pytest.mark.long
async def test_no_page_of_twenty_thousand_adapters_holds_the_loop(gateway):
    store = gateway.state.store
    await registry.fill(store, ADAPTERS, 100, "http://127.0.0.1:9")
    await gateway.state.follower.wait_for(await store.commit(()), 600)
    tune_garbage_collection()  # as `florin serve` does
    steps = Steps()
    watching = asyncio.create_task(steps.watch())
    longest = {}
    async with Browser(base_url=gateway.url, timeout=600) as browser, gateway.http() as api:
        await browser.sign_in()
        await browser.page("/console/adapters")  # compiles its template
        for path in PATHS:
            client = browser if path.startswith("/console/") else api
            steps.longest = 0.0
            response = await client.get(path)
            assert response.status_code == 200
            longest[path] = steps.longest
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert max(longest.values()) < STEP_SECONDS, longest
