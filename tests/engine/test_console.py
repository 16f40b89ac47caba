"""Each person's day in a browser, on real engines with real adapters. The browser reaches nothing but this
machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright, expect

from deploy.browser import environment
from deploy.demo.model import DemoModel
from gateway.costs.periods import month
from gateway.metering.records import record_id
from tests.browser.days import Files, an_operators, do, go, text_of, tile
from tests.browser.watching import new_context, watched
from tests.browser.world import World
from tests.support.harness import Gateway
from tests.support.missing import missing

OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
RATE = "4000"
"""Per GPU-hour: a few seconds of a tiny model's work are to be worth cents."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    try:
        installed = environment.browser()
    except environment.BrowserUnavailableError as error:
        missing(error)
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=installed.executable,
            env={**os.environ, **installed.environment},
            args=[OFFLINE],
        )
        yield running
        await running.close()


async def test_an_operators_day(
    gateway_with_engines: Gateway, demo_model: DemoModel, tmp_path: Path, browser: Browser
) -> None:
    first, second = (demo_model.adapters[name].path for name in ("acme", "bolt"))
    broken = tmp_path / "broken"
    shutil.copytree(first, broken)
    config = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps(config | {"r": 64}))
    async with new_context(browser) as context, watched(context) as tab:
        world = World(gateway_with_engines, {}, tmp_path)
        await an_operators(world, tab, Files(broken, first, second), engine="e0")


async def test_a_customers_day_and_the_month_it_is_billed_in(
    gateway: Gateway, demo_model: DemoModel, tmp_path: Path, browser: Browser
) -> None:
    world = World(gateway, {}, tmp_path)
    for gpu_type in ("h100", "l40s"):
        body = {"gpu_type": gpu_type, "rate_per_gpu_hour": RATE, "valid_from": "2026-01-01T00:00:00Z"}
        await world.admin("POST", "prices", body)
    await world.admin("PATCH", "tenants/acme", {"limits": {"requests_per_minute": 3}})
    await world.add_key("acme", "tenant-admin", "acme")
    await world.add_key("finance", "finance")
    await _a_customers(world, browser, demo_model)
    closed = await _last_month(gateway)
    await _an_analysts(world, browser, closed)


async def _a_customers(world: World, browser: Browser, demo_model: DemoModel) -> None:
    """Tries its adapter, runs into its limit, which an operator raises, and finds what that cost."""
    [(question, answer), *_] = demo_model.adapters["acme"].answers.items()
    async with new_context(browser) as context, watched(context) as tab:
        page = tab.page
        await world.sign_in(tab, "acme")
        await go(tab, "acme/support", "Try it")
        await page.get_by_label("Message").fill(question)
        await page.keyboard.press("Enter")
        side = page.locator(".side-of").first
        await expect(side.get_by_role("link", name="the request")).to_be_visible()
        await expect(side.locator(".answer")).to_contain_text(answer.split()[0])
        await go(tab, "Keys", "Create a key")
        await page.get_by_label("Label").fill("checkout service")
        await do(tab, "Create")
        key = (await page.locator("code", has_text="fl_").first.inner_text()).strip()
        world.gateway.keys["acme"] = key
        ids = [await world.ask("acme", "support", question) for _ in range(4)]

        async with new_context(browser) as other, watched(other) as operators:
            await world.sign_in(operators, "operator")
            await go(operators, "Tenants", "acme")
            await do(operators, "Change")
            await operators.page.locator("dialog[open]").get_by_label("New value").fill("600")
            await do(operators, "Save", "dialog[open]")
            await expect(operators.page.locator(".uses")).to_contain_text("600")
            assert operators.troubles == []

        answered = await asyncio.gather(*(world.ask("acme", "support", question) for _ in range(8)))
        await world.gateway.usage()
        await page.get_by_role("searchbox", name="Search").fill(answered[-1])
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("main")).to_contain_text("acme/support@v1")
        await expect(tile(page, "Cost, so far")).to_contain_text("USD")
        await go(tab, "Account")
        await expect(tile(page, "Spent")).to_contain_text("USD")
        await expect(page.get_by_role("main")).to_contain_text("rate_limit_exceeded")
        assert tab.troubles == []
        assert len({*ids, *answered}) == 12


async def _last_month(gateway: Gateway) -> str:
    """What the engines counted today, as records of the month before last: only a month that is over can be
    closed."""
    this = datetime.fromtimestamp(time.time(), UTC).replace(day=1)
    past = f"{(this - timedelta(days=40)).replace(day=1):%Y-%m}"
    found = await gateway.usage()
    away = min(r.dispatched for r in found) - (month(past).start + 3_600_000_000)
    moved = [
        replace(
            r,
            id=record_id(f"past-{r.request_id}", r.attempt),
            request_id=f"past-{r.request_id}",
            dispatched=r.dispatched - away,
            first_token=None if r.first_token is None else r.first_token - away,
            ended=r.ended - away,
            hour_marks=None,
        )
        for r in found
    ]
    await asyncio.to_thread(gateway.state.ledger.insert, moved)
    return past


async def _an_analysts(world: World, browser: Browser, past: str) -> None:
    """Closes the month and downloads the statement, whose total is that of the ledger: of all its requests."""
    async with new_context(browser) as context, watched(context) as tab:
        page = tab.page
        await world.sign_in(tab, "finance")
        await go(tab, "Money", "Months")
        await page.locator(f"a[href$='/months/{past}']").first.click()
        await tab.settled()
        await do(tab, "Close the month")
        close = page.locator("dialog[open]")
        await close.get_by_label(f"Type {past} to confirm").fill(past)
        await close.get_by_role("button", name="Close for ever").click()
        await expect(page.get_by_role("button", name="Verify")).to_be_visible()
        await do(tab, "Verify")
        await expect(page.get_by_text("The month is as it was closed.")).to_be_visible()
        await go(tab, past)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="CSV").click()
        lines = (await text_of(await download.value)).splitlines()
        [charged] = [line.split(",") for line in lines if line.startswith("acme,")]
        billed = Decimal(charged[lines[0].split(",").index("amount")])
        await page.get_by_role("link", name="Statement of acme").click()
        await expect(page.get_by_text(f"{billed:,.2f}").first).to_be_visible()
        assert tab.troubles == []

    ledger = Decimal(0)
    async with world.gateway.http() as http:
        for record in await world.gateway.usage("acme"):
            if record.request_id.startswith("past-"):
                told = (await http.get(f"/finance/v1/usage/{record.request_id}/cost")).json()
                assert told["pending"] == ""
                ledger += Decimal(told["cost"])
    assert billed == ledger.quantize(Decimal("0.01"), ROUND_HALF_UP) > 0
