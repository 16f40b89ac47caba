"""A large installation's pages are as light as a small one's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapters.store.embedded import EmbeddedValkey
from gateway.console.pages import ROUTES
from loadtests.console.crowd import ENGINES
from tests.browser.crawling import crawl
from tests.browser.crowded_world import crowded_world
from tests.browser.judging import fits, without_trouble
from tests.browser.watching import Watched
from tests.browser.world import World
from tests.support.forms import LONG

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def crowd(
    valkey: EmbeddedValkey, october: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with crowded_world(valkey, "crowd", tmp_path_factory.mktemp("crowd"), october) as made:
        yield made


OF_ONE_ADAPTER = {route.path for route in ROUTES if route.path.startswith("/adapters/{tenant}/{name}")}
"""What a large installation makes no larger; `test_pages.py` visits these."""


@pytest.mark.parametrize("who", ["operator", pytest.param("finance", marks=pytest.mark.long)])
async def test_each_page_is_light(crowd: World, tab: Watched, who: str) -> None:
    await crowd.sign_in(tab, who)
    wrong = []
    async for _ in crawl(tab, crowd.url, () if LONG else OF_ONE_ADAPTER):
        wrong += [f"{tab.page.url}: {text}" for text in without_trouble(tab) + await fits(tab)]
    assert wrong == []


async def test_tables_are_paged_and_filtered(crowd: World, tab: Watched) -> None:
    await crowd.sign_in(tab, "operator")
    await tab.visit(f"{crowd.url}/fleet?view=table")
    rows = tab.page.locator("tbody tr")
    assert ENGINES > await rows.count() > 10
    await tab.page.get_by_role("link", name="Next").click()
    await tab.page.get_by_role("link", name="gpu-63", exact=True).wait_for()
    await tab.page.get_by_role("searchbox", name="Filter").fill("gpu-1")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_text(f"10 of {ENGINES} rows").wait_for()
    assert await rows.count() == 10
    assert tab.troubles == []
