"""The console's pages of the fleet, of requests, and its search: with real actions, and the walls between roles."""

from __future__ import annotations

import html
import re

import pytest

from adapters.model import SlotState
from gateway.tenants.directory import Role
from loadtests.mock_engine import MockEngine
from tests.support.console import Browser
from tests.support.waiting import until

ODD = "<script>alert(1)</script>"


@pytest.fixture
async def browser(gateway):
    async with Browser(base_url=gateway.url, timeout=60) as client:
        yield client


@pytest.fixture
async def third():
    async with MockEngine() as engine:
        yield engine


async def _ask(gateway, tenant: str, model: str = "support") -> str:
    async with gateway.client(tenant) as client:
        answer = await client.chat.completions.with_raw_response.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        return answer.headers["x-request-id"]


async def _holder(gateway) -> str:
    """The engine that holds the only adapter that was asked for, once the feed has brought it."""

    def resident() -> str | None:
        held = ((name, gateway.state.residency.slots(name)) for name in ("a", "b"))
        return next((name for name, slots in held if SlotState.RESIDENT in slots.values()), None)

    return await until(resident)


async def test_the_map_shows_what_lives_where_and_what_has_just_moved(deployment, browser):
    await _ask(deployment.gateway, "acme")
    await _holder(deployment.gateway)
    await browser.sign_in()
    page = await browser.page("/console/fleet")
    assert "2 of 2" in page
    assert page.count('class="slot resident') == 1
    assert "was loaded on" in page
    event = await browser.first_event("/console/live/fleet")
    assert "acme/support" in event
    assert "<html" not in event
    only = await browser.page("/console/fleet?gpu=l40s")
    assert 'id="e-b"' in only
    assert 'id="e-a"' not in only
    assert "No engine matches" in await browser.page("/console/fleet?q=nothing-of-this-name")
    compact = await browser.page("/console/fleet?view=compact")
    assert re.search(r'<li class="cell resident( busy)?"><span>acme/support@v1, resident', compact)
    export = (await browser.get("/console/fleet?format=csv&gpu=l40s")).text.splitlines()
    assert [line.partition(",")[0] for line in export] == ["name", "b"]
    assert len(page.encode()) < 60_000


async def test_an_engine_is_cordoned_drained_and_removed(deployment, browser):
    gateway = deployment.gateway
    await _ask(gateway, "acme")
    holder = await _holder(gateway)
    other = "b" if holder == "a" else "a"
    await browser.sign_in()
    there = f"/console/fleet/{holder}"
    done = await browser.submit(there, f"{there}/state", state="cordoned")
    assert f"Engine {holder} takes no new adapters" in done.text
    assert gateway.state.catalog.engines[holder].state == "cordoned"
    assert "engine.state" in await browser.page(there)

    plan = await browser.page(f"{there}/drain")
    assert f"Load on {other}" in plan
    assert gateway.state.catalog.engines[holder].state == "cordoned"  # nothing has been done yet
    for wrong in ("-1", "1e9", "999999999", "x"):
        refused = await browser.submit(f"{there}/drain", f"{there}/drain", timeout=wrong)
        assert (refused.status_code, "imeout" in refused.text) == (400, True)
    begun = await browser.submit(f"{there}/drain", f"{there}/drain", timeout="60", release="on")
    assert f"The drain of {holder} has begun." in begun.text
    await until(lambda: gateway.state.residency.slots(other))
    await until(lambda: _drained(browser, holder))
    assert "No request runs on" in await browser.first_event(f"/console/live/fleet/{holder}/drain")

    refused = await browser.submit(there, f"{there}/remove", confirm="wrong")
    assert (refused.status_code, holder in gateway.state.catalog.engines) == (400, True)
    removed = await browser.submit(there, f"{there}/remove", confirm=holder)
    assert f"Engine {holder} was removed." in removed.text
    assert holder not in gateway.state.catalog.engines
    assert (await browser.get(there)).status_code == 404


async def _drained(browser: Browser, name: str) -> bool:
    return "No request runs on" in await browser.page(f"/console/fleet/{name}/drain")


async def test_engines_are_added_and_hosts_enrolled(deployment, third, browser):
    await browser.sign_in()
    assert "florin engine token create" in html.unescape(await browser.page("/console/enrol-host"))
    form = {
        "name": "c",
        "url": third.url,
        "base": "base",
        "gpu_type": f"A10 {ODD}",
        "slots": "2",
        "max_rank": "8",
        "labels": "pool=acme",
    }
    for wrong in ({"slots": "two"}, {"labels": "pool"}, {"name": "UPPER"}, {"slots": ""}):
        refused = await browser.submit("/console/add-engine", "/console/add-engine", **(form | wrong))
        assert refused.status_code == 400, wrong
        assert 'class="problem"' in refused.text
    added = await browser.submit("/console/add-engine", "/console/add-engine", **form)
    assert added.status_code == 200, added.text
    engine = deployment.gateway.state.catalog.engines["c"]
    assert (engine.slots, engine.labels) == (2, {"pool": "acme"})
    for path in ("/console/fleet", "/console/fleet/c", "/console/fleet?view=table", "/console/search?q=A10"):
        page = await browser.page(path)
        assert ODD not in page
        assert html.escape(ODD) in page

    enrolled = await browser.submit(
        "/console/enrol-host", "/console/enrol-host", engine="gpu1", expires_in="30m"
    )
    command = html.unescape(enrolled.text)
    token = command.partition("<<< ")[2].partition(")")[0]
    assert len(token) > 20
    assert command.count(token) == 4  # shown and copied, by itself and in the command
    assert "florin engine run --name gpu1 --token-file gpu1.token" in command
    assert token not in await browser.page("/console/enrol-host")
    refused = await browser.submit("/console/enrol-host", "/console/enrol-host", engine="GPU 1")
    assert refused.status_code == 400


async def test_a_request_is_told_to_its_own(deployment, browser):
    gateway = deployment.gateway
    mine, other = await _ask(gateway, "acme"), await _ask(gateway, "bolt")
    await browser.sign_in()
    await until(lambda: _known(browser, other))
    one = await browser.page(f"/console/requests/{mine}")
    for told in ("acme/support@v1", "answered", "Why there", "was the cheapest", mine):
        assert told in one
    listed = await browser.page("/console/requests")
    assert listed.index(other) < listed.index(mine)  # the newest first
    assert mine not in await browser.page("/console/requests?tenant=bolt")
    assert "No request matches" in await browser.page("/console/requests?outcome=failed")
    assert "No such" not in await browser.page("/console/requests?hours=rubbish&page=-7")
    assert (await browser.get(f"/console/requests?request={mine}")).headers["location"].endswith(mine)
    assert "It would go to" in await browser.page("/console/explain?adapter=acme/support")
    assert (await browser.get("/console/explain?adapter=nonsense")).status_code == 400
    assert (await browser.get("/console/explain?adapter=acme/no-such")).status_code == 404
    assert ODD not in await browser.page(f"/console/requests/{ODD.replace('/', '%2F')}", 404)

    for role in (Role.TENANT, Role.TENANT_ADMIN):
        await browser.sign_in(await gateway.add_key(role, "acme"))
        page = await browser.page(f"/console/requests/{mine}")
        assert "acme/support@v1" in page
        assert "/console/fleet/" not in page  # nothing of the fleet
        assert (await browser.get(f"/console/requests/{other}")).status_code == 404
        listed = await browser.page("/console/requests?tenant=acme")
        assert mine in listed
        assert other not in listed
        assert (await browser.get("/console/requests?tenant=bolt")).status_code == 404
    await browser.sign_in(await gateway.add_key(Role.FINANCE))
    assert other in await browser.page("/console/requests")


async def _known(browser: Browser, request_id: str) -> bool:
    return request_id in (await browser.get("/console/requests")).text


async def test_search_finds_each_its_own(deployment, browser):
    gateway = deployment.gateway
    mine = await _ask(gateway, "acme")
    await browser.sign_in()
    await until(lambda: _known(browser, mine))

    async def leads_to(text: str) -> str:
        answer = await browser.get("/console/search", params={"q": text})
        return answer.headers.get("location", "") if answer.status_code == 303 else ""

    assert await leads_to(mine) == f"/console/requests/{mine}"
    assert await leads_to("a") == "/console/fleet/a"
    assert await leads_to("acme/support@v1") == "/console/adapters/acme/support"
    several = await browser.page("/console/search?q=support")
    assert several.count("/console/adapters/") == 3
    assert "Nothing found" in await browser.page(f"/console/search?q={ODD}")
    assert ODD not in await browser.page(f"/console/search?q={ODD}")
    for text in ("%00", "a" * 5000, "' OR 1=1 --", "..%2F..%2Fadmin", "💥"):
        assert (await browser.get(f"/console/search?q={text}")).status_code in {200, 303}

    await browser.sign_in(await gateway.add_key(Role.TENANT_ADMIN, "acme"))
    own = await browser.page("/console/search?q=support")
    assert own.count("/console/adapters/") == 1
    assert "bolt" not in own
    assert await leads_to("a") == ""
    await browser.sign_in(await gateway.add_key(Role.TENANT, "bolt"))
    assert await leads_to(mine) == ""
    assert "Nothing found" in await browser.page(f"/console/search?q={mine}")
