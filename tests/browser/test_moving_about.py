"""What the frame of every page does: links and forms without loading anew, search, theme, exact times."""

from __future__ import annotations

import pytest

from gateway.console.pages import ENTRIES
from gateway.tenants.directory import Role
from tests.browser.watching import Watched
from tests.browser.world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_navigation_and_the_way_back(world: World, tab: Watched) -> None:
    """Each link replaces the page's content; the URL, the title, the focus and the mark of where one is follow."""
    await world.sign_in(tab, "operator")
    navigation = tab.page.get_by_role("navigation", name="Console")
    entries = [entry for entry in ENTRIES if Role.OPERATOR in entry.roles]
    await tab.page.evaluate("() => { window.sameDocument = true; }")
    for entry in entries:
        link = navigation.get_by_role("link", name=entry.title, exact=True)
        await link.focus()
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_url(f"**/console{entry.path}")
        await tab.settled()
        assert await link.get_attribute("aria-current") == "page"
        assert (await tab.page.title()).endswith(" · Florin")
        assert await tab.page.evaluate("() => document.activeElement.id") == "main"
    assert await tab.page.evaluate("() => window.sameDocument") is True
    for entry in reversed(entries[:-1]):
        await tab.page.go_back()
        await tab.page.wait_for_url(f"**/console{entry.path}")
        await tab.settled()
    assert tab.troubles == []


async def test_theme_and_exact_times_are_kept(world: World, tab: Watched) -> None:
    await world.sign_in(tab, "operator")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(ground)
    await tab.page.get_by_role("button", name="Light or dark").click()
    assert await tab.page.evaluate(ground) != light
    exact = tab.page.get_by_role("button", name="Exact times")
    await exact.click()
    await tab.page.reload()
    await tab.settled()
    assert await tab.page.evaluate(ground) != light
    assert await exact.get_attribute("aria-pressed") == "true"
    assert tab.troubles == []


async def test_a_key_jumps_to_the_search_but_not_while_one_types(world: World, tab: Watched) -> None:
    await world.sign_in(tab, "operator")
    search = tab.page.get_by_role("searchbox", name="Search adapters")
    await tab.page.keyboard.press("/")
    assert await search.evaluate("element => element === document.activeElement")
    await tab.page.keyboard.type("acme/support")
    assert await search.input_value() == "acme/support"


async def test_signing_out(world: World, tab: Watched) -> None:
    await world.sign_in(tab, "acme")
    inside = tab.page.url
    await tab.page.get_by_role("button", name="Sign out").click()
    await tab.page.get_by_label("Your key").wait_for()
    await tab.visit(inside)
    assert "/console/sign-in" in tab.page.url
    assert tab.troubles == []


async def test_another_page_begins_at_its_top_and_a_sorted_table_stays(world: World, tab: Watched) -> None:
    await world.sign_in(tab, "operator")
    await tab.visit(f"{world.url}/tenants/acme")
    bottom = "() => { scrollTo(0, document.body.scrollHeight); return scrollY; }"
    assert await tab.page.evaluate(bottom) > 0
    await tab.page.get_by_role("link", name="When", exact=True).click()  # sorts the last table
    await tab.settled()
    assert await tab.page.evaluate("() => scrollY") > 0
    await tab.page.get_by_role("link", name="req-").first.click()
    await tab.page.wait_for_url("**/requests/**")
    await tab.settled()
    assert await tab.page.evaluate("() => scrollY") == 0
    assert tab.troubles == []
