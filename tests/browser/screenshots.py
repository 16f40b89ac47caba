"""`python -m tests.browser.screenshots [DIRECTORY]`: the pictures of the documentation, docs/console/*.png.

They show the world of the tests, so that anybody can make them again after a change of the pages.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

from adapters.store.embedded import EmbeddedValkey
from gateway.costs.sample_month import month as sample_month
from tests.browser.watching import new_context, watched
from tests.browser.world import World, lived_in_world
from tests.tools.browser import environment

_DOCS = Path(__file__).parents[2] / "docs" / "console"
SHOTS = {
    "sign-in": ("", "/sign-in"),
    "fleet": ("operator", "/fleet"),
    "drain": ("operator", "/fleet/h100-0/drain"),
    "adapters": ("operator", "/adapters"),
    "canary": ("operator", "/adapters/acme/sales"),
    "register": ("acme", "/adapters/new"),
    "chat": ("acme", "/adapters/acme/sales/try"),
    "request": ("operator", "/requests/{asked}"),
    "tenant": ("operator", "/tenants/acme"),
    "account": ("acme", "/account"),
    "costs": ("finance", "/money?month=2026-10"),
    "utilization": ("finance", "/money/utilization?month=2026-10"),
    "month": ("finance", "/money/months/2026-10"),
    "health": ("operator", "/health"),
}
"""Who visits what, by the picture's name."""


async def take(world: World, directory: Path, only: set[str]) -> None:
    installed = environment.browser(print)
    asked = await world.ask("acme", "sales")
    await world.gateway.usage()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=installed.executable, env={**os.environ, **installed.environment}
        )
        for name, (who, path) in SHOTS.items():
            if only and name not in only:
                continue
            async with new_context(browser) as context, watched(context) as tab:
                if who:
                    await world.sign_in(tab, who)
                await tab.visit(world.url + path.format(asked=asked))
                if name == "chat":
                    await _chat(tab.page)
                picture = directory / f"{name}.png"
                await tab.page.screenshot(path=picture)
                picture.chmod(0o644)  # a gateway in this process hides what it writes
        await browser.close()


async def _chat(page: Page) -> None:
    await page.get_by_label("Message").fill("Where is my parcel?")
    await page.keyboard.press("Enter")
    for side in await page.locator(".side-of").all():
        await side.get_by_role("link", name="the request").wait_for()


async def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else _DOCS
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="florin-screenshots-") as scratch:
        tmp = Path(scratch)
        (tmp / "valkey").mkdir()
        sample_month.write(tmp / "october")
        with EmbeddedValkey(tmp / "valkey", fsync="everysec") as valkey:
            async with lived_in_world(valkey, "screenshots", tmp, tmp / "october" / "ledger.db") as world:
                await take(world, directory, set(sys.argv[2:]))


if __name__ == "__main__":
    asyncio.run(main())
