"""The walls between roles and between customers, at every route of the console. No browser is needed to try them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
import pytest_asyncio

from gateway.console.pages import ROUTES
from gateway.console.visit import Route
from tests.browser.test_pages import ROLES
from tests.browser.world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

BOLTS = {
    "tenant": "bolt", "name": "support", "version": "v1", "engine": "h100-0", "month": "2026-10",
    "id": "0123456789ab", "request_id": "req-0123", "evaluation": "e-1", "number": "1",
}  # fmt: skip
"""What stands in each parameter of a path. Acme may have none of it."""
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def visitors(world: World) -> AsyncIterator[dict[str, httpx2.AsyncClient]]:
    """A signed-in client of each role; each sends the proof that its forms would."""
    clients = {who: httpx2.AsyncClient(base_url=world.gateway.url, timeout=30) for who in (*ROLES, "nobody")}
    for who in ROLES:
        await clients[who].post("/console/sign-in", data={"key": world.keys[who]})
        page = await clients[who].get("/console", follow_redirects=True)
        clients[who].headers["x-csrf-token"] = _CSRF.search(page.text)[1]
    yield clients
    for client in clients.values():
        await client.aclose()


def filled(route: Route, values: dict[str, str]) -> str:
    def value(parameter: re.Match[str]) -> str:
        return values[parameter[1].partition(":")[0]]

    return "/console" + re.sub(r"\{([^}]+)\}", value, route.path)


def form(tenant: str) -> dict[str, str]:
    """With which a form would do something to this tenant's, if it might."""
    return {
        "tenant": tenant, "name": "support", "version": "v1", "weight": "100", "confirm": f"{tenant}/support",
        "source": "/nowhere", "role": "tenant", "min_replicas": "1", "cost_centre": "theirs",
    }  # fmt: skip


async def tried(client: httpx2.AsyncClient, route: Route, path: str, tenant: str = "bolt") -> httpx2.Response:
    """A stream's first bytes only."""
    async with client.stream(
        route.method, path, data=form(tenant) if route.method == "POST" else None
    ) as answer:
        if "event-stream" not in answer.headers.get("content-type", ""):
            await answer.aread()
        return answer


async def registry(world: World) -> object:
    return await world.admin("GET", "export"), (await world.admin("GET", "audit?limit=1"))["data"]


async def test_a_role_has_its_own_routes_and_no_other(
    world: World, visitors: dict[str, httpx2.AsyncClient]
) -> None:
    before = await registry(world)
    for route in ROUTES:
        path = filled(route, BOLTS)
        for who, role in ROLES.items():
            if role not in route.roles:
                answer = await tried(visitors[who], route, path)
                assert answer.status_code == 403, (who, route.method, path)
                assert "insufficient_role" in answer.text, (who, route.method, path)
        answer = await tried(visitors["nobody"], route, path)
        assert answer.status_code == 303, (route.method, path)
        assert answer.headers["location"].startswith("/console/sign-in"), (route.method, path)
    assert await registry(world) == before


async def test_a_customer_has_nothing_of_another(
    world: World, visitors: dict[str, httpx2.AsyncClient]
) -> None:
    """And cannot tell it from what does not exist."""
    before = await registry(world)
    nothing = BOLTS | {"tenant": "zulu"}
    for route in ROUTES:
        if "{tenant" not in route.path:
            continue
        for who in ("acme", "acme-tenant"):
            if ROLES[who] not in route.roles:
                continue
            theirs = await tried(visitors[who], route, filled(route, BOLTS))
            absent = await tried(visitors[who], route, filled(route, nothing), "zulu")
            if ROLES[who] == "tenant-admin":  # a chat box of role tenant is the same for any name
                assert theirs.status_code >= 400, (who, route.method, route.path)
            assert theirs.status_code == absent.status_code, (who, route.method, route.path)
            assert without_name(theirs.text, "bolt") == without_name(absent.text, "zulu"), route.path
    assert await registry(world) == before


async def test_a_form_that_says_whose_changes_nothing_of_another(
    world: World, visitors: dict[str, httpx2.AsyncClient]
) -> None:
    async def bolts() -> object:
        return await world.admin("GET", "keys?tenant=bolt"), await world.admin("GET", "adapters?tenant=bolt")

    before = await bolts()
    for path in ("/console/keys", "/console/adapters/new"):
        await visitors["acme"].post(path, data=form("bolt"))
    assert await bolts() == before


def without_name(page: str, name: str) -> str:
    return _request_id("", page).replace(name, "…")


_request_id: Callable[[str, str], str] = re.compile(r"req-[0-9a-f]+").sub


async def test_a_form_without_proof_of_its_page_changes_nothing(
    world: World, visitors: dict[str, httpx2.AsyncClient]
) -> None:
    before = await registry(world)
    for route in ROUTES:
        if route.method == "POST":
            for who, role in ROLES.items():
                if role in route.roles:
                    forged = {"x-csrf-token": "of-another-session"}
                    answer = await visitors[who].post(filled(route, BOLTS), headers=forged, data={"csrf": ""})
                    assert answer.status_code == 403, (who, route.path)
    assert await registry(world) == before
