"""Steps that people take in the console, and the operator's day, on whatever engines there are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Download, Locator, Page, expect

from tests.browser.watching import Watched
from tests.browser.world import World

expect.set_options(timeout=60_000)  # only failures take as long; machines that run tests are busy


@dataclass(frozen=True)
class Files:
    """Directories of adapters: one that the checks refuse, and two versions."""

    broken: Path
    first: Path
    second: Path


async def go(tab: Watched, *names: str) -> None:
    """Follows links by what they are called, from the navigation on."""
    for name in names:
        link = tab.page.get_by_role("link", name=name, exact=True).first
        await link.click()
        await tab.settled()


async def do(tab: Watched, name: str, within: str = "main") -> None:
    await tab.page.locator(within).get_by_role("button", name=name, exact=True).click()
    await tab.settled()


async def text_of(download: Download) -> str:
    return await asyncio.to_thread((await download.path()).read_text)


def tile(page: Page, label: str) -> Locator:
    return page.locator(".tile", has=page.get_by_text(label, exact=True))


async def an_operators(world: World, tab: Watched, files: Files, engine: str) -> None:
    """Adds a customer, ships it two versions of an adapter, the second as a canary, rolls that back, and drains an
    engine."""
    page = tab.page
    await world.sign_in(tab, "operator")
    await expect(page.get_by_role("heading", name="Fleet")).to_be_visible()

    await go(tab, "Tenants")
    await go(tab, "Add a tenant")
    await page.get_by_label("Name").fill("acme")
    await do(tab, "Add")

    # An adapter that cannot work is refused with the reason, and what was typed stays.
    await go(tab, "Adapters", "Register an adapter", "At a URL or a path")
    await page.get_by_label("Adapter", exact=False).and_(page.locator("[name=name]")).fill("support")
    await page.get_by_label("Source").fill(str(files.broken))
    await do(tab, "Fetch and check")
    await expect(page.get_by_role("alert")).to_contain_text("adapter_rejected")
    tab.failed.remove("422 POST /console/adapters/new")
    assert await page.locator("[name=name]").input_value() == "support"
    await page.get_by_label("Source").fill(str(files.first))
    await do(tab, "Fetch and check")
    await expect(page.get_by_role("main")).to_contain_text("acme/support@v1 is registered")

    # The second version comes from the operator's own machine.
    await go(tab, "Add a version")
    await page.get_by_label("Its files", exact=True).set_input_files(sorted(files.second.glob("adapter_*")))
    await do(tab, "Upload and check")
    await expect(page.get_by_role("main")).to_contain_text("acme/support@v2 is registered")
    await go(tab, "Promote …")
    await page.get_by_label("Share of calls, in percent").fill("25")
    await do(tab, "Promote")
    await expect(tile(page, "Canary")).to_contain_text("v2 · 25 %")

    # The page counts the calls as they come.
    world.gateway.keys["acme"] = await world.add_key("acme-tenant", "tenant", "acme")
    requests = page.get_by_role("row", name="Requests").get_by_role("cell").first
    await asyncio.gather(*(world.ask("acme", "support", user=f"user-{n}") for n in range(24)))
    await expect(requests).not_to_have_text("0")

    await do(tab, "Roll back")
    await do(tab, "Roll back", "dialog[open]")
    await expect(tile(page, "Canary")).to_contain_text("none")
    await expect(tile(page, "Live")).to_contain_text("v1")

    await go(tab, "Fleet", engine, "Drain…")
    await do(tab, "Start the drain")
    await expect(page.get_by_text("drained").first).to_be_visible()
    await go(tab, "Audit")
    actions = await page.locator("tbody code").all_inner_texts()
    for action in ("tenant.add", "adapter.add", "adapter.canary", "adapter.rollback", "engine.drain"):
        assert action in actions
    assert tab.troubles == []
