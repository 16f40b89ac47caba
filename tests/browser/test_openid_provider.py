"""People sign in with a certified OpenID provider, in a real browser: on the command line and in the console, with
claims in the shapes of Keycloak and Okta. (What issuers do wrong: tests/integration/test_sign_in.py; claims of other
shapes: tests/unit/gateway/tenants/people/test_claims.py.)"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from adapters.store.embedded import EmbeddedValkey
from gateway.commands.client import UnreachableError, UsageError
from gateway.tenants.people import issuer as issuer_module
from gateway.tenants.people.commands import sign_ins
from tests.browser.openid_provider import OpenidProvider, openid_provider
from tests.browser.watching import new_context
from tests.integration.test_cli import FLORIN
from tests.support.engine_hosts import free_port
from tests.support.harness import Gateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLI, CONSOLE, SECRET = "florin-cli", "florin", "s3cret"
AUDIENCE = "https://florin.example.com/api"
PEOPLE: dict[str, dict[str, Any]] = {
    "kim": {  # Keycloak's mapper "realm roles"
        "preferred_username": "kim",
        "email": "kim@example.com",
        "email_verified": True,
        "realm_access": {"roles": ["offline_access", "uma_authorization", "florin-operators"]},
    },
    "olga": {  # Okta's groups claim
        "name": "Olga Okta",
        "email": "olga@example.com",
        "groups": ["Everyone", "florin-operators"],
    },
    "nora": {"name": "Nora", "groups": ["Everyone"]},
}
SETTINGS = {
    "oidc_client_id": CONSOLE,
    "oidc_client_secret": SECRET,
    "oidc_cli_client_id": CLI,
    "oidc_cli_prompt": "consent",
    "oidc_roles": "florin-operators=operator",
}
_INSIDE = re.compile(r"/console/(?!sign-in)")
Place = tuple[OpenidProvider, Gateway]


@contextlib.asynccontextmanager
async def place(tmp_path: Path, valkey: EmbeddedValkey, prefix: str, **settings: Any) -> AsyncIterator[Place]:
    """A provider, and a gateway that both of its clients know."""
    known = SETTINGS | settings
    port = free_port()  # nobody else gets it while the provider is away
    async with openid_provider(tmp_path / "provider", PEOPLE, key="first", port=port) as provider:
        known["oidc_issuer"] = provider.url
        async with running_gateway(tmp_path / "state", valkey.url, prefix, **known) as gateway:
            await provider.change("clients", clients(gateway))
            await gateway.add_tenant("acme")
            yield provider, gateway


def clients(gateway: Gateway) -> list[dict[str, Any]]:
    device = "urn:ietf:params:oauth:grant-type:device_code"
    return [
        {
            "client_id": CLI,
            "application_type": "native",
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token", device],
            "redirect_uris": ["http://127.0.0.1/callback"],
        },
        {
            "client_id": CONSOLE,
            "client_secret": SECRET,
            "redirect_uris": [f"{gateway.url}/console/sign-in/oidc/callback"],
        },
    ]


async def configure(place: Place, settings: dict[str, str]) -> None:
    provider, gateway = place
    people = gateway.state.people
    assert people is not None
    defaults = {"oidc_audience": "", "oidc_roles_claim": "groups", "oidc_person_claim": "sub"}
    people.reconfigure(people.settings.model_copy(update=defaults | settings))
    await provider.change("audience", people.settings.oidc_audience)
    await provider.change("clock", 0)


async def be(page: Page, name: str) -> None:
    """Sign in on the provider's page, and consent."""
    await page.get_by_placeholder("Enter any login").fill(name)
    await page.get_by_placeholder("and password").fill("x")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()


async def to_provider(page: Page, gateway: Gateway) -> None:
    await page.goto(f"{gateway.url}/console/sign-in")
    await page.get_by_role("link", name="Sign in with").click()


async def sent_token(gateway: Gateway) -> str:
    """The token that commands send, renewed if it is due."""
    return await asyncio.to_thread(sign_ins.token, gateway.url)


async def renewed_token(gateway: Gateway) -> str:
    found = sign_ins.read(gateway.url)
    assert found is not None
    sign_ins.write(sign_ins.SignIn(**{f: getattr(found, f) for f in found.__slots__} | {"expires": 0.0}))
    try:
        return await sent_token(gateway)
    except (UsageError, UnreachableError):
        sign_ins.write(found)
        raise


async def me(gateway: Gateway, token: str) -> tuple[int, str]:
    """Status, and the person or the error's code."""
    async with gateway.http(token) as http:
        answer = await http.get("/admin/v1/me")
    body = answer.json()
    return answer.status_code, body["error"]["code"] if answer.is_error else body["id"]


@contextlib.asynccontextmanager
async def florin(gateway: Gateway, home: Path, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        FLORIN, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "FLORIN_URL": gateway.url},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def offered(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """The URL that `florin login` names, and what stands behind it."""
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
    found = re.search(r"(http://\S+)(.*)", line)
    assert found, line
    return found[1], found[2]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def here(tmp_path_factory: pytest.TempPathFactory, valkey: EmbeddedValkey) -> AsyncIterator[Place]:
    """What the tests share. Each configures it."""
    async with place(tmp_path_factory.mktemp("openid"), valkey, f"openid-{os.getpid()}") as made:
        yield made


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("HOME", str(tmp_path))  # where commands keep sign-ins
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with new_context(browser) as context:
        yield await context.new_page()


async def test_the_command_line_while_keys_and_clocks_change(here: Place, page: Page, tmp_path: Path) -> None:
    provider, gateway = here
    await configure(here, {})
    async with florin(gateway, tmp_path, "login", "--no-browser") as login:
        url, _ = await offered(login)
        await page.goto(url)
        await be(page, "olga")
        await expect(page.get_by_text("Go back to the terminal")).to_be_visible()
        out, err = await login.communicate()
        assert b"Signed in as olga@example.com (oidc:olga), role operator.\n" in out, err
        assert b"commands renew it" in out
    before = await sent_token(gateway)
    assert await me(gateway, before) == (200, "oidc:olga")

    # A key changes under the running gateway: the old one stays good until it is withdrawn.
    await provider.change("rotate", {"kid": "second", "keep": True})
    after = await renewed_token(gateway)
    assert [await me(gateway, token) for token in (before, after)] == [(200, "oidc:olga")] * 2
    await provider.change("rotate", {"kid": "third", "keep": False})
    assert await me(gateway, await renewed_token(gateway)) == (200, "oidc:olga")
    assert await me(gateway, after) == (401, "invalid_token")

    # Clocks differ: by a little, and so that tokens come from the future or have expired.
    for seconds, found in (
        (20, (200, "oidc:olga")),
        (120, (401, "invalid_token")),
        (-250, (200, "oidc:olga")),
    ):
        await provider.change("clock", seconds)
        assert await me(gateway, await renewed_token(gateway)) == found, seconds
    await provider.change("clock", -400)
    with pytest.raises(UsageError, match="renewed nothing"):
        await renewed_token(gateway)


async def test_a_sign_in_that_is_refused(here: Place, page: Page, tmp_path: Path) -> None:
    await configure(here, {})
    async with florin(here[1], tmp_path, "login", "--no-browser") as login:
        url, _ = await offered(login)
        await page.goto(url)
        await page.get_by_role("link", name="Cancel").click()
        _, err = await login.communicate()
        assert (login.returncode, b"aborted interaction" in err) == (1, True), err


@pytest.mark.parametrize(
    ("name", "settings", "actor", "role"),
    [
        ("olga", {}, "oidc:olga", "operator"),
        # Access tokens instead of ID tokens: Keycloak's have the roles without another mapper.
        (
            "kim",
            {"oidc_roles_claim": "realm_access.roles", "oidc_audience": AUDIENCE},
            "oidc:kim",
            "operator",
        ),
    ],
    ids=["ID token", "access token"],
)
async def test_the_console_with_each_kind_of_token(
    here: Place, browser: Browser, name: str, settings: dict[str, str], actor: str, role: str
) -> None:
    _, gateway = here
    await configure(here, settings)
    async with new_context(browser) as context:
        page = await context.new_page()
        await to_provider(page, gateway)
        await be(page, name)
        await page.wait_for_url(_INSIDE)
        [cookie] = [c["value"] for c in await context.cookies() if c["name"] == "florin_session"]
    session = await gateway.state.sessions.find(cookie)
    assert session is not None
    key = gateway.state.sessions.key_of(session)
    assert key is not None
    assert (key.id, key.role) == (actor, role)


async def test_the_console_refuses_in_words(here: Place, page: Page) -> None:
    provider, gateway = here
    await configure(here, {})
    await to_provider(page, gateway)
    await page.get_by_role("link", name="Cancel").click()
    await expect(page.get_by_text("aborted interaction")).to_be_visible()
    await to_provider(page, gateway)
    await be(page, "nora")
    await expect(page.get_by_text("the claim 'groups' of your token has 'Everyone'")).to_be_visible()
    await provider.change("clock", 120)
    await to_provider(page, gateway)  # she is known there, and asked nothing
    await expect(page.get_by_text("compare the clocks")).to_be_visible()


async def test_a_session_that_the_provider_ends_and_a_provider_that_is_away(
    valkey: EmbeddedValkey, page: Page, tmp_path: Path
) -> None:
    async with place(tmp_path, valkey, f"openid-away-{os.getpid()}") as own:  # which the others do not share
        await ended_and_away(own, page, tmp_path)


async def ended_and_away(own: Place, page: Page, tmp_path: Path) -> None:
    provider, gateway = own
    await configure(own, {})
    async with florin(gateway, tmp_path, "login", "--device", "--json") as login:
        url, rest = await offered(login)
        await page.goto(url)
        assert rest.rpartition(" ")[2] in await page.content()
        await page.get_by_role("button", name="Continue").click()
        await be(page, "olga")
        await expect(page.get_by_text("Sign-in Success")).to_be_visible()
        out, err = await login.communicate()
        assert (json.loads(out)["id"], json.loads(out)["role"]) == ("oidc:olga", "operator"), err

    # What it gave is good until it expires, and is not renewed.
    good = await renewed_token(gateway)
    kept = sign_ins.read(gateway.url)
    assert kept is not None
    await provider.change("end", kept.refresh_token)
    with pytest.raises(UsageError, match="Sign in again with `florin login`"):
        await renewed_token(gateway)
    assert await me(gateway, good) == (200, "oidc:olga")

    provider.process.kill()
    await provider.process.wait()
    with pytest.raises(UnreachableError, match="does not answer"):
        await renewed_token(gateway)
    assert await me(gateway, good) == (200, "oidc:olga")
    port = int(provider.url.rpartition(":")[2])
    async with openid_provider(tmp_path / "provider", PEOPLE, key="after it was away", port=port) as back:
        await back.change("clients", clients(gateway))
        await to_provider(page, gateway)
        await be(page, "olga")
        await page.wait_for_url(_INSIDE)
