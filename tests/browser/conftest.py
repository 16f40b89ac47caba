"""A real browser for the console's tests. Its modules run in one event loop per process, the browser's:
`pytestmark = pytest.mark.asyncio(loop_scope="session")`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from adapters.store.embedded import EmbeddedValkey
from gateway.costs.sample_month import month as sample_month
from tests.browser.watching import Watched, new_context, watched
from tests.browser.world import World, lived_in_world
from tests.support.missing import missing
from tests.tools.browser import environment


@pytest.fixture(scope="session")
def installed() -> environment.Browser:
    try:
        return environment.browser()
    except environment.BrowserUnavailableError as error:
        missing(error)


@pytest.fixture(scope="session")
def axe(installed: environment.Browser) -> str:
    return installed.axe.read_text()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(installed: environment.Browser) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=installed.executable,
            env={**os.environ, **installed.environment},
            args=[
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--js-flags=--no-turbofan --no-maglev",  # no page lives so long that optimizing its scripts pays
            ],
        )
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser) -> AsyncIterator[Watched]:
    async with new_context(browser) as context, watched(context) as page:
        yield page


@pytest.fixture(scope="session")
def october(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of the sample month. Filling one takes 4 s, so that worlds get copies."""
    directory = tmp_path_factory.mktemp("october") / "state"
    sample_month.write(directory)
    return directory / "ledger.db"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def world(
    valkey: EmbeddedValkey, october: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """For looking only: all tests share it."""
    async with lived_in_world(valkey, "world", tmp_path_factory.mktemp("world"), october) as made:
        yield made
