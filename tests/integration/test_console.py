"""The console's foundation: signing in and out, the walls, forms, static files, live parts."""

from __future__ import annotations

import re

import httpx2
import pytest

from gateway.tenants.directory import Role
from tests.support.harness import OPERATOR_KEY


@pytest.fixture
async def browser(gateway):
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as client:
        yield client


async def sign_in(browser: httpx2.AsyncClient, key: str = OPERATOR_KEY) -> httpx2.Response:
    return await browser.post("/console/sign-in", data={"key": key})


async def test_a_key_signs_in_and_out(gateway, browser):
    first = await browser.get("/console/fleet?q=a")
    assert (first.status_code, first.headers["location"]) == (
        303,
        "/console/sign-in?next=/console/fleet%3Fq%3Da",
    )
    began = await sign_in(browser)
    assert (began.status_code, began.headers["location"]) == (303, "/console")
    cookie = began.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/console"} <= set(cookie.split("; "))
    assert OPERATOR_KEY not in cookie
    page = await browser.get("/", headers={"accept": "text/html,*/*"}, follow_redirects=True)
    assert page.status_code == 200
    assert (await browser.get("/")).status_code == 404  # of a program, which looks for an API
    assert "<h1>Fleet</h1>" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "'unsafe" not in page.headers["content-security-policy"]
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]
    secret = browser.cookies["florin_session"]
    out = await browser.post("/console/sign-out", data={"csrf": token})
    assert out.status_code == 303
    browser.cookies.set("florin_session", secret, path="/console")
    assert (
        await browser.get("/console/fleet")
    ).status_code == 303  # the session is over, not only the cookie


async def test_over_https_the_sessions_cookie_is_this_hosts_alone(gateway, browser):
    await browser.get("/console/sign-in")  # builds the console
    gateway.app._console._settings = gateway.state.settings.model_copy(update={"behind_proxy": True})
    began = await sign_in(browser)
    [cookie] = began.headers.get_list("set-cookie")
    secret = cookie.partition(";")[0].removeprefix("__Host-florin_session=")
    assert {"HttpOnly", "SameSite=lax", "Path=/", "Secure"} <= set(cookie.split("; "))
    assert "Domain" not in cookie

    async def fleet(name):
        return await browser.get("/console/fleet", headers={"cookie": f"{name}={secret}"})

    page = await fleet("__Host-florin_session")
    assert page.status_code == 200
    assert (await fleet("florin_session")).status_code == 303  # which a neighbouring host could have set
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]
    headers = {"cookie": f"__Host-florin_session={secret}"}
    out = await browser.post("/console/sign-out", data={"csrf": token}, headers=headers)
    assert out.headers["set-cookie"].startswith('__Host-florin_session=""')
    assert {"Path=/", "Secure", "Max-Age=0"} <= set(out.headers["set-cookie"].split("; "))


async def test_a_wrong_key_is_told_what_to_do(browser):
    for key, status, word in (
        ("", 401, "begins with fl_"),
        ("fl_no_such", 401, "does not exist"),
        ("\u00e9", 401, "exist"),
    ):
        answer = await sign_in(browser, key)
        assert answer.status_code == status
        assert word in answer.text
        assert "set-cookie" not in answer.headers


async def test_a_session_ends_with_its_key(gateway, browser):
    text = await gateway.add_key(Role.OPERATOR)
    await sign_in(browser, text)
    assert (await browser.get("/console/fleet")).status_code == 200
    async with gateway.http() as operator:
        assert (await operator.delete(f"/admin/v1/keys/{text.split('_')[1]}")).status_code == 200
    assert (await browser.get("/console/fleet")).status_code == 303


async def test_forms_need_their_token_and_their_origin(browser):
    await sign_in(browser)
    token = re.search(r'name="csrf" value="([^"]+)"', (await browser.get("/console/fleet")).text)[1]
    wrong = await browser.post("/console/sign-out", data={"csrf": "no"})
    absent = await browser.post("/console/sign-out")
    assert (wrong.status_code, absent.status_code) == (403, 403)
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        answer = await browser.post("/console/sign-out", data={"csrf": token}, headers=headers)
        assert answer.status_code == 403
    assert (await browser.get("/console/fleet")).status_code == 200


async def test_signing_in_never_leads_out_of_the_console(browser):
    for then in ("https://evil.example/", "//evil.example", "/admin", "/console\\@evil", "/consoles"):
        answer = await browser.post("/console/sign-in", data={"key": OPERATOR_KEY, "next": then})
        assert answer.headers["location"] == "/console", then


async def test_a_page_that_waits_for_others_shows_its_frame_at_once(browser):
    await sign_in(browser)
    opening = {"sec-fetch-dest": "document"}
    for path in ("/console/health", "/console/money?month=2026-10"):
        frame = await browser.get(path, headers=opening)
        assert f'hx-get="{path}"' in frame.text
        assert "<h1>" not in frame.text
        loading = {"sec-fetch-dest": "empty", "hx-request": "true", "hx-target": "main"}
        for headers in (loading, {"hx-request": "true", "hx-boosted": "true"}, {}):
            page = await browser.get(path, headers=headers)
            assert "<h1>" in page.text, headers
            assert 'class="loading"' not in page.text
    # What is loaded into the frame is a whole page, also if it is an error; so is a download.
    wrong = await browser.get("/console/money?month=June", headers=loading)
    assert wrong.status_code == 400
    assert 'id="main"' in wrong.text
    file = await browser.get("/console/health?format=csv", headers=opening)
    assert file.headers["content-type"].startswith("text/csv")


async def test_static_files_are_compressed_and_kept_for_ever(browser):
    page = (await browser.get("/console/sign-in")).text
    for url in re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page):
        answer = await browser.get(url)
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
    assert (await browser.get("/console/static/none/console.js")).status_code == 404


async def test_a_table_is_sorted_filtered_and_exported(gateway, browser):
    for name in ("a", "b", "c"):
        await gateway.add_engine(name, f"http://127.0.0.1:1/{name}")
    await sign_in(browser)
    page = (await browser.get("/console/fleet?view=table&sort=-name&q=h100")).text
    assert re.findall(r'href="/console/fleet/(\w)"', page) == ["c", "b", "a"]
    found = await browser.get("/console/fleet?format=csv&q=1/b")
    assert found.text.splitlines()[1].startswith("b,active,h100")
    assert "attachment" in found.headers["content-disposition"]


async def test_without_the_store_a_session_goes_on_and_nobody_signs_in(gateway, browser, monkeypatch):
    from adapters.errors import StoreUnavailableError

    await sign_in(browser)
    assert (await browser.get("/console/fleet")).status_code == 200

    async def gone(*_: object, **__: object) -> None:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(gateway.state.store, "session", gone)
    monkeypatch.setattr(gateway.state.store, "put_session", gone)
    assert (await browser.get("/console/fleet")).status_code == 200
    refused = await sign_in(browser)
    assert refused.status_code == 503
    assert "Redis" in refused.text
