"""Every page of the console, for everyone who may see it."""

from __future__ import annotations

import pytest

from tests.browser.judging import accessible, fits, operable_by_keyboard, without_trouble
from tests.browser.watching import Watched
from tests.browser.world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def judged(tab: Watched, axe: str) -> list[str]:
    found = without_trouble(tab)
    return [
        *found,
        *await fits(tab.page),
        *await accessible(tab.page, axe),
        *await operable_by_keyboard(tab.page),
    ]


async def test_fleet(world: World, tab: Watched, axe: str) -> None:
    await tab.visit(f"{world.url}/sign-in")
    assert await judged(tab, axe) == []
    await world.sign_in(tab, "operator")
    await tab.visit(f"{world.url}/fleet")
    await tab.page.screenshot(path="/tmp/bw/fleet.png")
    print(await judged(tab, axe), tab.received)
