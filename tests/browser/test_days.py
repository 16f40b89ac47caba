"""A day of each of the three people that Florin is for, in a browser, from sign-in to the last download."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from adapters.store.embedded import EmbeddedValkey
from gateway.costs.sample_month import month as sample_month
from tests.browser.days import Files, an_operators, do, go, text_of, tile
from tests.browser.watching import Watched
from tests.browser.world import World, bare_world, lived_in_world
from tests.support.lora import lora_config, write_adapter

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def new_world(valkey: EmbeddedValkey, fresh_prefix, tmp_path: Path) -> AsyncIterator[World]:
    async with bare_world(valkey, fresh_prefix(), tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_world(
    valkey: EmbeddedValkey, october: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A lived-in one that these tests may change."""
    async with lived_in_world(valkey, "days", tmp_path_factory.mktemp("days"), october) as made:
        yield made


async def test_an_operators(new_world: World, tab: Watched) -> None:
    too_high = lora_config(base_model_name_or_path=sample_month.MODEL, r=64)
    broken = write_adapter(new_world.tmp / "broken", config=too_high)
    files = Files(broken, new_world.files("first", fill=1), new_world.files("second", fill=2))
    await an_operators(new_world, tab, files, engine="h100-0")


async def test_a_customers(own_world: World, tab: Watched) -> None:
    world, page = own_world, tab.page
    await world.sign_in(tab, "acme")
    await expect(page.get_by_role("heading", name="Adapters")).to_be_visible()
    await expect(page.locator("tbody tr")).to_have_count(2)

    # The live version beside the canary, in the browser.
    await go(tab, "acme/sales", "Try it")
    await page.get_by_label("Message").fill("Where is my parcel?")
    await page.keyboard.press("Enter")
    sides = page.locator(".side-of")
    for n in range(2):
        await expect(sides.nth(n).locator(".answer")).not_to_be_empty()
        await expect(sides.nth(n).get_by_role("link", name="the request")).to_be_visible()
    await sides.first.get_by_role("link", name="the request").click()
    await expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()

    # A request that failed, found by its id from anywhere.
    failed = await world.ask("acme", "no-such-adapter")
    assert failed.startswith("req-")
    answered = await world.ask("acme", "support")
    await world.gateway.usage()
    await page.get_by_role("searchbox", name="Search").fill(answered)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_contain_text("acme/support@v1")

    await go(tab, "Keys", "Create a key")
    await page.get_by_label("Label").fill("checkout service")
    await do(tab, "Create")
    key = (await page.locator("code", has_text="fl_").first.inner_text()).strip()
    world.gateway.keys["acme"] = key
    assert (await world.ask("acme", "support")).startswith("req-")
    await go(tab, "Keys")
    await expect(page.get_by_role("row", name="checkout service")).to_be_visible()
    await go(tab, "Account")
    await expect(tile(page, "Spent")).to_contain_text("USD")
    assert tab.troubles == []


async def test_a_finance_analysts(own_world: World, tab: Watched) -> None:
    world, page = own_world, tab.page
    await world.sign_in(tab, "finance")
    await go(tab, "Money")
    await page.get_by_label("Month").select_option("2026-10")
    await do(tab, "Show")
    await expect(tile(page, "GPUs cost in all")).to_contain_text("2,958.15 USD")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="CSV").click()
    table = await text_of(await download.value)
    assert table.startswith("tenant,")

    await go(tab, "Months")
    await page.get_by_role("row", name="October 2026").get_by_role("link").first.click()
    await tab.settled()
    await do(tab, "Close the month")
    close = page.locator("dialog[open]")
    await close.get_by_label("Type 2026-10 to confirm").fill("October")
    await close.get_by_role("button", name="Close for ever").click()
    assert await close.count() == 1  # the browser itself refuses another word
    await close.get_by_label("Type 2026-10 to confirm").fill("2026-10")
    await close.get_by_role("button", name="Close for ever").click()
    await expect(page.get_by_role("button", name="Verify")).to_be_visible()
    await do(tab, "Verify")
    await expect(page.get_by_text("The month is as it was closed.")).to_be_visible()

    await go(tab, "2026-10")
    async with page.expect_download() as download:
        await page.get_by_role("link", name="FOCUS 1.2, for finance tools").click()
    assert "BilledCost" in (await text_of(await download.value)).splitlines()[0]
    row = page.get_by_role("row", name="Statement of acme")
    async with page.expect_download() as download:
        await row.get_by_role("link", name="Download").click()
    saved = await download.value
    assert saved.suggested_filename == "statement-2026-10-acme.html"
    assert "780.74" in await text_of(saved)
    # On the screen it is a document of its own, with the style that it is printed with.
    await row.get_by_role("link", name="Statement of acme").click()
    await expect(page.get_by_text("Statement of inference usage")).to_be_visible()
    assert await page.evaluate("() => document.styleSheets[0].href") is None
    await expect(page.get_by_text("780.74").first).to_be_visible()
    assert tab.troubles == []
