"""People sign in with an OpenID Connect issuer: a real one over real sockets, with real keys."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from gateway.errors import FlorinError
from gateway.tenants.people import issuer as issuer_module
from gateway.tenants.people.sign_in import begin, finish
from tests.integration.test_cli import FLORIN
from tests.support.engine_hosts import free_port
from tests.support.harness import Gateway, running_gateway
from tests.support.oidc_issuer import SETTINGS, OidcIssuer, SigningKey, answering, ec_key, rsa_key
from tests.support.waiting import PATIENCE_S

BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20).read()"


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    found = OidcIssuer()
    with answering(found):
        yield found


@pytest.fixture
async def gateway(tmp_path: Path, valkey_url: str, prefix: str, issuer: OidcIssuer) -> AsyncIterator[Gateway]:
    async with signing_in(tmp_path, valkey_url, prefix, issuer) as running:
        yield running


@asynccontextmanager
async def signing_in(
    tmp_path: Path, valkey_url: str, prefix: str, issuer: OidcIssuer, **settings: Any
) -> AsyncIterator[Gateway]:
    known = {**SETTINGS, "oidc_issuer": issuer.url, **settings}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **known) as running:
        yield running


async def asked(gateway: Gateway, token: str, path: str = "/admin/v1/me") -> tuple[int, str]:
    """Status, and the error's code or the key's id."""
    async with gateway.http(token) as http:
        answer = await http.get(path)
    body = answer.json()
    return answer.status_code, body["error"]["code"] if answer.is_error else body.get("id", "")


async def test_roles_come_from_claims_and_the_audit_names_the_person(gateway: Gateway, issuer: OidcIssuer):
    await gateway.add_tenant("acme")
    for groups, org, me, reached in (
        (["ops"], None, (200, "oidc:u-1"), (200, 200, 200)),
        (["users", "money", "x"], "acme", (200, "oidc:u-1"), (403, 403, 200)),
        ("acme-admins", None, (200, "oidc@acme:u-1"), (403, 200, 200)),
        (["users"], "acme", (200, "oidc@acme:u-1"), (403, 403, 200)),
        (["users"], "bolt", (403, "no_role"), (403, 403, 403)),
        (["users"], None, (403, "no_role"), (403, 403, 403)),
        (["other"], None, (403, "no_role"), (403, 403, 403)),
        (None, None, (403, "no_role"), (403, 403, 403)),
    ):
        token = issuer.token(groups=groups, org=org)
        assert await asked(gateway, token) == me, groups
        paths = ("/admin/v1/tenants", "/admin/v1/adapters", "/finance/v1/usage")
        assert tuple([(await asked(gateway, token, path))[0] for path in paths]) == reached, groups

    async with gateway.http(issuer.token()) as http:
        assert (await http.post("/admin/v1/tenants", json={"name": "bolt"})).status_code == 201
        [entry, *_] = (await http.get("/admin/v1/audit")).json()["data"]
        assert (entry["actor"], entry["action"]) == ("oidc:u-1", "tenant.add")
        me = (await http.get("/admin/v1/me")).json()
        assert (me["label"], me["role"], me["tenant_terms"]) == ("jane@example.com", "operator", None)
    async with gateway.http(
        issuer.token(groups=["acme-admins"])
    ) as http:  # sees its own name, and no operator's
        made = await http.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant"})
        assert made.status_code == 201, made.text
        assert [e["actor"] for e in (await http.get("/admin/v1/audit")).json()["data"]] == ["oidc@acme:u-1"]
        refused = await http.post("/admin/v1/keys", json={"role": "operator"})
        assert refused.status_code in {403, 404}


async def test_tokens_are_not_for_the_data_plane_and_keys_work_as_before(
    gateway: Gateway, issuer: OidcIssuer
):
    key = await gateway.add_tenant("acme")
    token = issuer.token(groups=["acme-admins"])
    assert (await asked(gateway, token, "/v1/models")) == (401, "invalid_api_key")
    async with gateway.http(key) as http:
        assert (await http.get("/v1/models")).status_code == 200
    assert await asked(gateway, "eyJ.x.y", "/v1/models") == (401, "invalid_api_key")


def rubbish(issuer: OidcIssuer) -> dict[str, str]:
    """Tokens that nobody may get in with."""
    now, good = int(time.time()), issuer.token()
    head, body, signature = good.split(".")
    stranger = SigningKey(rsa_key().id, rsa_key("other").private, "RS256")
    public = rsa_key().jwk["n"]

    def unsigned(**header: Any) -> str:
        text = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
        return f"{text}.{body}.{signature}"

    return {
        "another key under the same id": issuer.token(key=stranger),
        "an unknown key": issuer.token(key=ec_key("unknown")),
        "no algorithm": jwt.encode({"sub": "u-1", "iss": issuer.url, "aud": "florin", "exp": now + 99}, None, "none"),
        "an algorithm that is a list": unsigned(alg=["RS256"], kid="rsa"),
        "a type that is an object": unsigned(alg="RS256", kid="rsa", typ={}),
        "none, with a signature": unsigned(alg="none", kid="rsa"),
        "HS256 with the public key": jwt.encode(
            {"sub": "u-1", "iss": issuer.url, "aud": "florin", "exp": now + 99}, public, "HS256", {"kid": "rsa"}
        ),
        "another algorithm of the same key": jwt.encode(
            {"sub": "u-1", "iss": issuer.url, "aud": "florin", "exp": now + 99, "groups": ["ops"]},
            rsa_key().private, "RS512", {"kid": "rsa"},
        ),
        "a critical extension": issuer.token(headers={"crit": ["exp"]}),
        "its own key in the header": issuer.token(key=stranger, headers={"kid": "x", "jwk": stranger.jwk}),
        "no key id of several": "",
        "another issuer": issuer.token(iss="https://evil.example.com"),
        "an issuer that begins alike": issuer.token(iss=f"{issuer.url}/"),
        "another audience": issuer.token(aud="another"),
        "no audience": issuer.token(aud=None),
        "given to another client": issuer.token(aud=["florin", "other"], azp="other"),
        "no end": issuer.token(exp=None),
        "an end that is text": issuer.token(exp=str(now + 99)),
        "an end beyond all clocks": issuer.token(exp=1 << 70),
        "not valid yet": issuer.token(nbf=now + 120),
        "made in the future": issuer.token(iat=now + 120),
        "no subject": issuer.token(sub=None),
        "an empty subject": issuer.token(sub=""),
        "a subject with a line break": issuer.token(sub="u\nadmin"),
        "a long subject": issuer.token(sub="u" * 300),
        "a logout token": issuer.token(headers={"typ": "logout+jwt"}),
        "a changed body": f"{head}.{body[:-2]}AA.{signature}",
        "a cut signature": good[:-4],
        "no JSON": "eyJhbGciOiJSUzI1NiIsImtpZCI6MX0.e30.YQ",
        "nothing in it": "eyJ..",
        "too long": issuer.token(x="x" * 20_000),
    }  # fmt: skip


async def test_rubbish_gets_nobody_in(gateway: Gateway, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(issuer_module, "PAUSE_SECONDS", 0.0)
    await gateway.state.people.issuer.refresh()  # the first fetch is over: the next one finds both keys
    issuer.keys.append(ec_key("second"))
    await gateway.state.people.issuer.refresh()
    monkeypatch.setattr(issuer_module, "PAUSE_SECONDS", 3600.0)
    assert await asked(gateway, issuer.token()) == (200, "oidc:u-1")
    tokens = rubbish(issuer) | {
        "no key id of several": issuer.token(key=SigningKey("", rsa_key().private, "RS256"))
    }
    for what, token in tokens.items():
        assert await asked(gateway, token) == (401, "invalid_token"), what
    now = int(time.time())
    for what, claims, found in (
        ("clocks that differ a little", {"exp": now - 10}, (200, "oidc:u-1")),
        ("clocks that differ a little, ahead", {"iat": now + 10, "nbf": now + 10}, (200, "oidc:u-1")),
        ("expired", {"exp": now - 31}, (401, "expired_token")),
        ("several audiences", {"aud": ["other", "florin"], "azp": "florin"}, (200, "oidc:u-1")),
    ):
        assert await asked(gateway, issuer.token(**claims), "/admin/v1/me") == found, what
    # Anybody can send tokens of unknown keys: the issuer does not hear of each.
    assert issuer.asked.count("/keys") <= 3


async def test_a_key_is_rotated_and_an_issuer_that_is_away_is_no_outage(
    gateway: Gateway, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
):
    assert await asked(gateway, issuer.token()) == (200, "oidc:u-1")
    monkeypatch.setattr(issuer_module, "PAUSE_SECONDS", 0.0)
    issuer.keys.insert(0, ec_key("new"))
    tokens = [issuer.token() for _ in range(20)]
    assert {await each for each in asyncio.as_completed([asked(gateway, t) for t in tokens])} == {
        (200, "oidc:u-1")
    }
    assert issuer.asked.count("/keys") <= 3  # they wait for one answer together
    issuer.keys.pop()
    await gateway.state.people.issuer.refresh()
    assert await asked(gateway, issuer.token(key=rsa_key())) == (401, "invalid_token")  # withdrawn


async def test_an_issuer_that_is_away_at_start_and_later(
    tmp_path: Path, valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(issuer_module, "PAUSE_SECONDS", 0.0)
    issuer = OidcIssuer()
    with answering(issuer, port := free_port()):
        pass
    async with signing_in(tmp_path, valkey_url, prefix, issuer) as gateway:
        token = issuer.token()
        assert await asked(gateway, token) == (503, "issuer_unavailable")
        async with gateway.http() as http:
            assert (await http.get("/admin/v1/tenants")).status_code == 200  # keys work
        with answering(issuer, port):
            assert await asked(gateway, token) == (200, "oidc:u-1")
        clock = [time.monotonic()]
        monkeypatch.setattr(gateway.state.people.issuer, "_clock", lambda: clock[0])
        clock[0] += issuer_module.FRESH_SECONDS + 1
        assert await asked(gateway, token) == (200, "oidc:u-1")  # the keys are stale, and used
        assert await asked(gateway, issuer.token(key=ec_key("new"))) == (
            503,
            "issuer_unavailable",
        )  # perhaps its own
        clock[0] += issuer_module.STALE_SECONDS
        assert await asked(gateway, token) == (503, "issuer_unavailable")


async def test_access_tokens_if_there_is_an_audience(tmp_path, valkey_url, prefix, issuer):
    async with signing_in(tmp_path, valkey_url, prefix, issuer, oidc_audience="florin-api") as gateway:
        token = issuer.token(aud="florin-api", azp="another-client", headers={"typ": "at+jwt"})
        assert await asked(gateway, token) == (200, "oidc:u-1")
        assert await asked(gateway, issuer.token()) == (401, "invalid_token")


async def test_a_browser_signs_in_once_with_what_it_began(gateway: Gateway, issuer: OidcIssuer):
    people, back = gateway.state.people, f"{gateway.url}/console/sign-in/oidc/callback"

    async def visit() -> tuple[Any, dict[str, str]]:
        url, request = await begin(people, back)
        async with httpx2.AsyncClient() as browser:
            place = (await browser.get(url)).headers["location"]
        assert place.startswith(back)
        return request, dict(httpx2.URL(place).params)

    request, answer = await visit()
    key = await finish(people, request, answer, back)
    assert (key.id, key.role, key.label) == ("oidc:u-1", "operator", "jane@example.com")
    assert 0 < key.expires / 1e6 - time.time() <= issuer.lifetime + 31
    other, theirs = await visit()
    for asked_by, came, words in (
        (request, answer, "used up"),
        (request, theirs, "not the answer"),
        (other, {**theirs, "iss": "https://evil.example.com"}, "another issuer"),
        (other, {"state": other.state, "error": "access_denied"}, "access_denied"),
        (other, {**theirs, "code": answer["code"]}, "used up"),
    ):
        with pytest.raises(FlorinError, match=words):
            await finish(people, asked_by, came, back)
    third, whose = await visit()
    with pytest.raises(
        FlorinError, match="issuer refused"
    ):  # a code that another browser's sign-in was given
        await finish(people, other, {**whose, "state": other.state}, back)
    issuer.secret = "s3cret"
    with pytest.raises(FlorinError, match="invalid_client"):
        await finish(people, third, whose, back)


async def test_the_console_lets_people_in(tmp_path, valkey_url, prefix, issuer: OidcIssuer):
    trusted = {"trusted_proxies": "127.0.0.1"}
    async with (
        signing_in(tmp_path, valkey_url, prefix, issuer, **trusted) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as browser,
        httpx2.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as another,
    ):
        page = await browser.get("/console/sign-in?next=/console/fleet")
        assert 'href="/console/sign-in/oidc?next=/console/fleet"' in page.text
        gone = await browser.get("/console/sign-in/oidc?next=/console/fleet")
        assert {"HttpOnly", "SameSite=lax", "Path=/console/sign-in/oidc"} <= set(
            gone.headers["set-cookie"].split("; ")
        )
        back = (await browser.get(gone.headers["location"])).headers["location"]
        assert back.startswith(f"{gateway.url}/console/sign-in/oidc/callback?code=")
        stranger = await another.get(back)  # a link that somebody was sent
        assert (stranger.status_code, "This browser has begun no sign-in" in stranger.text) == (401, True)
        done = await browser.get(back)
        assert (done.status_code, done.headers["location"]) == (303, "/console/fleet"), done.text
        [session] = [c for c in done.headers.get_list("set-cookie") if c.startswith("florin_session=")]
        assert 0 < int(session.partition("Max-Age=")[2].partition(";")[0]) <= issuer.lifetime + 31
        assert (await browser.get("/console/fleet")).status_code == 200
        again = await browser.get(back)  # the code and the cookie are used up
        assert again.status_code == 401

        # The session ends with the token: the gateway's clock is put forward.
        directory, sessions = gateway.state.directory, gateway.app._console.sessions
        later = time.time_ns() // 1000 + (issuer.lifetime + 40) * 1_000_000
        directory._clock = sessions._clock = lambda: later
        assert (await browser.get("/console/fleet")).headers["location"].startswith("/console/sign-in")
        directory._clock = sessions._clock = gateway.state.clock.now

        issuer.person["groups"] = ["nobodies"]
        behind = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
        gone = await another.get("/console/sign-in/oidc", headers=behind)
        assert "Secure" in gone.headers["set-cookie"]
        assert "redirect_uri=https%3A%2F%2F127.0.0.1" in gone.headers["location"]
        gone = await another.get("/console/sign-in/oidc")
        refused = await another.get((await another.get(gone.headers["location"])).headers["location"])
        assert (refused.status_code, "nobodies" in refused.text) == (403, True)
        assert "florin_session" not in str(refused.headers)
        for query in ("?state=x&code=y", "", "?error=access_denied"):
            assert (await another.get(f"/console/sign-in/oidc/callback{query}")).status_code == 401
    async with running_gateway(tmp_path / "plain", valkey_url, prefix) as gateway, gateway.http() as http:
        assert "/console/sign-in/oidc" not in (await http.get("/console/sign-in")).text
        assert (await http.get("/console/sign-in/oidc")).status_code == 404
        assert (await http.get("/admin/v1/sign-in")).json() == {"oidc": None}


# -- the command line


class Person:
    """Somebody at a machine, with a home and the `florin` command."""

    def __init__(self, gateway: Gateway, home: Path) -> None:
        self.gateway, self.home = gateway, home

    async def florin(self, *args: str, **env: str) -> tuple[int, str, str]:
        whole = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "FLORIN_URL": self.gateway.url,
            "BROWSER": f"{sys.executable} -c '{BROWSER}' %s", "COLUMNS": "200", **env,
        }  # fmt: skip
        done = await asyncio.to_thread(
            subprocess.run,
            [FLORIN, *args],
            env=whole,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def file(self) -> Path:
        [found] = (self.home / ".config" / "florin" / "sign-ins").glob("*.json")
        return found


@pytest.fixture
def jane(gateway: Gateway, tmp_path: Path) -> Person:
    return Person(gateway, tmp_path / "home")


async def test_login_whoami_renewal_and_logout(jane: Person, issuer: OidcIssuer):
    code, out, err = await jane.florin("login")
    assert (code, "Signed in as jane@example.com (oidc:u-1), role operator" in out) == (0, True), out + err
    assert stat.S_IMODE(jane.file.stat().st_mode) == 0o600
    code, out, _ = await jane.florin("whoami")
    assert code == 0
    assert "signed in as" in out
    assert "oidc:u-1" in out
    code, out, _ = await jane.florin("whoami", "--json", FLORIN_KEY="fl_x_y")  # a key still wins
    assert code == 1

    kept = json.loads(jane.file.read_text())
    jane.file.write_text(json.dumps(kept | {"expires": time.time() + 5}))
    issuer.person["email"] = "jane@new.example.com"
    code, out, err = await jane.florin("whoami")
    assert (code, "jane@new.example.com" in out) == (0, True), err
    renewed = json.loads(jane.file.read_text())
    assert renewed["refresh_token"] != kept["refresh_token"]

    jane.file.write_text(json.dumps(renewed | {"expires": time.time() - 5, "refresh_token": "used-up"}))
    code, out, err = await jane.florin("whoami")
    assert (code, "Sign in again with `florin login`" in err) == (2, True), err
    jane.file.write_text(json.dumps(renewed))
    jane.file.chmod(0o644)
    code, out, err = await jane.florin("whoami")
    assert (code, "others can read it" in err) == (2, True), err
    jane.file.chmod(0o600)
    code, out, err = await jane.florin("logout")
    assert (code, out) == (0, "Signed out.\n"), err
    assert renewed["refresh_token"] not in issuer.grants
    code, out, err = await jane.florin("whoami")
    assert (code, "sign in with `florin login`" in err) == (2, True)


async def test_login_on_a_machine_without_a_browser_and_by_somebody_without_a_role(
    jane: Person, issuer: OidcIssuer
):
    issuer.device_entered = True
    code, out, err = await jane.florin("login", "--device", "--json")
    assert (code, json.loads(out)["role"]) == (0, "operator"), err
    assert "enter the code WDJB-MJHT" in err
    await jane.florin("logout")
    issuer.person["groups"] = ["nobodies"]
    code, out, err = await jane.florin("login", "--device")
    assert (code, "the claim 'groups' of your token has 'nobodies'" in " ".join(err.split())) == (1, True), (
        err
    )
    with pytest.raises(ValueError, match="not enough values"):  # nothing is kept
        _ = jane.file
