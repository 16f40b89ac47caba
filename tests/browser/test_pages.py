"""Every page of the console, for everyone who may see it."""

from __future__ import annotations

import pytest

from gateway.console.pages import ROUTES
from gateway.tenants.directory import Role
from tests.browser.crawling import crawl
from tests.browser.judging import judged, without_trouble
from tests.browser.watching import Watched
from tests.browser.world import ENGINES, World
from tests.support.forms import LONG, some_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLES = {
    "operator": "operator",
    "finance": "finance",
    "auditor": "auditor",
    "acme": "tenant-admin",
    "acme-tenant": "tenant",
}
NO_PAGES = (
    "/live/",
    "/search",
    "/account/spend",
    "/tenants/{name}/spend",
    "/money/months/{month}/",
    "/requests/{request_id}/cost",
)
"""Routes that no link need lead to: parts of pages, what a form asks for, and files of a month that is closed."""
FRAME = ("header.top", "nav.side")
"""What is the same around each page of a role."""
NOT_IN_THIS_WORLD = {"/adapters/{tenant}/{name}/evaluations/{evaluation}"}


@pytest.mark.parametrize("who", some_of(ROLES, "operator", "finance", "acme"))
async def test_each_page(world: World, tab: Watched, axe: str, who: str) -> None:
    """In the short form, a page that an operator sees, too, is judged as an operator's, and a key of role tenant sees
    an administrator's: the others' links must still lead to all pages, and no page may fail."""
    await world.sign_in(tab, who)
    wrong, reached = [], set()
    known: tuple[str, ...] = ()
    async for route in crawl(tab, world.url):
        reached.add(route.path)
        wholly = LONG or who == "operator" or Role.OPERATOR not in route.roles
        if wholly:
            found = await judged(tab, axe, known)
            known = () if LONG else FRAME
        else:
            found = without_trouble(tab)
        if who.startswith("acme"):
            text = await tab.page.content()
            found += [
                f"shows {other}" for other in ("bolt", "corgi", "/console/fleet", *ENGINES) if other in text
            ]
        wrong += [f"{tab.page.url}: {text}" for text in found]
    assert wrong == []
    pages = {route.path for route in ROUTES if route.method == "GET" and ROLES[who] in route.roles}
    unreached = pages - reached - NOT_IN_THIS_WORLD
    assert {path for path in unreached if not path.startswith(NO_PAGES)} == set()


async def test_signing_in(world: World, tab: Watched, axe: str) -> None:
    await tab.visit(f"{world.url}/sign-in")
    assert await judged(tab, axe) == []
    await tab.page.get_by_label("Your key").fill("fl_no_such")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("alert").wait_for()
    tab.failed.remove("401 POST /console/sign-in")
    assert await judged(tab, axe) == []


async def test_a_page_that_is_not_there(world: World, tab: Watched, axe: str) -> None:
    await world.sign_in(tab, "acme")
    await tab.visit(f"{world.url}/no-such-page")
    tab.failed.remove("404 GET /console/no-such-page")
    assert await judged(tab, axe) == []
    await tab.page.get_by_role("link", name="To the first page").click()
    await tab.settled()
    assert tab.page.url.startswith(world.url)
