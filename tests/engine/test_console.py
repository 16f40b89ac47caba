"""An operator's day in a browser, on real engines with real adapters."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from playwright.async_api import async_playwright

from deploy.browser import environment
from deploy.demo.model import DemoModel
from tests.browser.days import Files, an_operators
from tests.browser.watching import new_context, watched
from tests.browser.world import World
from tests.support.harness import Gateway
from tests.support.missing import missing


async def test_an_operators_day(gateway_with_engines: Gateway, demo_model: DemoModel, tmp_path: Path) -> None:
    try:
        installed = environment.browser()
    except environment.BrowserUnavailableError as error:
        missing(error)
    first, second = (demo_model.adapters[name].path for name in ("acme", "bolt"))
    broken = tmp_path / "broken"
    shutil.copytree(first, broken)
    config = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps(config | {"r": 64}))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=installed.executable, env={**os.environ, **installed.environment}
        )
        async with new_context(browser) as context, watched(context) as tab:
            world = World(gateway_with_engines, {}, tmp_path)
            await an_operators(world, tab, Files(broken, first, second), engine="e0")
        await browser.close()
