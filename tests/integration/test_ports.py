"""The admin port, cross-origin requests and security headers, on `florin serve` and on a gateway in this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest

from gateway.api.health import VLLMS_PATHS
from loadtests.mock_engine import MockEngine
from tests.integration.test_cli import KEY, Served, florin, serving
from tests.integration.test_data_plane import HELLO
from tests.support.forms import some_of
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import until

OPERATOR = {"authorization": f"Bearer {KEY}"}
ADMIN_ONLY = [
    "/admin/v1/tenants",
    "/admin/v1/apply",
    "/finance/v1/usage",
    "/metrics",
    "/docs",
    "/openapi.json",
]
BOTH = ["/healthz", "/readyz", *sorted(VLLMS_PATHS)]


@pytest.fixture(scope="module", params=some_of(["1", "2"], "2"))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, str]]:
    """A gateway of one or two workers, and the URL of its admin port."""
    state = tmp_path_factory.mktemp("ports") / "state"
    with serving(
        state, FLORIN_ADMIN_PORT="0", FLORIN_WORKERS=request.param, FLORIN_API_DOCS="true"
    ) as gateway:
        assert gateway.process.stdout is not None
        found = re.fullmatch(
            r"Admin and finance API on (http://127\.0\.0\.1:\d+)\n", gateway.process.stdout.readline()
        )
        assert found
        yield gateway, found[1]


@pytest.mark.parametrize("path", ADMIN_ONLY)
def test_what_the_admin_port_serves_does_not_exist_on_the_other(served: tuple[Served, str], path: str):
    gateway, admin = served
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        hidden = httpx2.request(method, gateway.url + path, headers=OPERATOR)
        unknown = httpx2.request(method, f"{gateway.url}/x{path[1:]}", headers=OPERATOR)
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.text.replace(path, "") == unknown.text.replace(f"/x{path[1:]}", "")
        assert {*hidden.headers} - {"x-request-id"} == {*unknown.headers} - {"x-request-id"}
    assert httpx2.get(admin + path, headers=OPERATOR).status_code in (200, 405)


def test_the_admin_port_serves_no_data_plane(served: tuple[Served, str]):
    gateway, admin = served
    for path in ("/v1/models", "/v1/chat/completions"):
        assert httpx2.get(gateway.url + path, headers=OPERATOR).status_code in (403, 405)
        assert httpx2.get(admin + path, headers=OPERATOR).status_code == 404
        assert httpx2.post(admin + path, headers=OPERATOR, json={}).status_code == 404


@pytest.mark.parametrize("path", BOTH)
def test_health_is_told_on_both(served: tuple[Served, str], path: str):
    assert [httpx2.get(url + path).status_code for url in (served[0].url, served[1])] == [200, 200]


def test_commands_reach_the_admin_port(served: tuple[Served, str]):
    gateway, admin = served
    assert florin("tenant", "list", FLORIN_URL=admin).returncode == 0
    refused = gateway.florin("tenant", "list")
    assert refused.returncode == 1
    assert "If it has an admin port, FLORIN_URL must name it." in refused.stderr
    florin("tenant", "add", "acme", FLORIN_URL=admin)
    listed = florin("tenant", "list", FLORIN_URL=admin).stdout
    assert "acme" in listed
    assert "1.000" not in listed
    assert gateway.florin("tenant", "list").returncode != 0


# -- browsers

APP = "https://app.example.com"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization",
}


async def test_pages_of_allowed_origins_may_call_the_data_plane_only(
    tmp_path: Path, valkey_url: str, prefix: str
):
    async with (
        MockEngine() as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, cors_origins=APP) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme", base_access=True)
        asked = {"model": "base", "messages": HELLO}
        async with gateway.http(gateway.keys["acme"]) as http:
            for path in ("/v1/models", "/v1/chat/completions"):
                answer = await http.options(path, headers=PREFLIGHT)
                assert answer.status_code == 200
                assert answer.headers["access-control-allow-origin"] == APP
                assert answer.headers["access-control-allow-headers"] == "authorization"
            for fields in ({}, {"stream": True}, {"n": 0}):
                answer = await http.post("/v1/chat/completions", json=asked | fields, headers={"origin": APP})
                assert answer.status_code == (400 if fields == {"n": 0} else 200)
                assert answer.headers["access-control-allow-origin"] == APP
                assert "access-control-allow-credentials" not in answer.headers
            answer = await http.post(
                "/v1/chat/completions", json=asked, headers={"origin": "https://evil.example.com"}
            )
            assert answer.headers["vary"] == "origin"
            assert "access-control-allow-origin" not in answer.headers
            answer = await http.options("/admin/v1/tenants", headers=PREFLIGHT)
            assert "access-control-allow-origin" not in answer.headers
        assert engine.state.calls


async def test_the_admin_api_is_open_to_pages_only_if_set(tmp_path: Path, valkey_url: str, prefix: str):
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, cors_origins=APP, cors_admin=True) as gateway,
        gateway.http() as http,
    ):
        answer = await http.options("/admin/v1/tenants", headers=PREFLIGHT)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
        answer = await http.get("/admin/v1/tenants", headers={"origin": APP})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
        assert "access-control-allow-credentials" not in answer.headers


async def test_security_headers(gateway: Gateway):
    async with MockEngine() as engine:
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme", base_access=True)
        async with gateway.client("acme") as client:
            raw = await client.chat.completions.with_raw_response.create(model="base", messages=HELLO)
            stream = await client.chat.completions.with_raw_response.create(
                model="base", messages=HELLO, stream=True
            )
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model="none", messages=HELLO)
        plain = [raw.headers, stream.headers, caught.value.response.headers]
        async with gateway.http() as http:
            pages = {
                path: (await http.get(path)).headers
                for path in (
                    "/admin/v1/tenants",
                    "/admin/v1/none",
                    "/finance/v1/usage",
                    "/docs",
                    "/none",
                )
            }
        async with gateway.http("wrong") as http:
            pages["refused"] = (await http.get("/admin/v1/tenants")).headers
        for headers in (*plain, *pages.values()):
            assert headers["x-content-type-options"] == "nosniff"
            assert headers.get_list("cache-control") == ["no-store"]
        for path, headers in pages.items():
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            policy = headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy
            assert ("script-src" in policy) == (path == "/docs")


async def test_behind_a_trusted_proxy_the_client_is_who_the_proxy_says(tmp_path, valkey_url, prefix, caplog):
    """Over real sockets, on the data plane and the admin API; from others, the same header counts for nothing."""
    forwarded = {"x-forwarded-for": "6.6.6.6, 203.0.113.9", "x-forwarded-proto": "https"}
    for trusted, client in (("127.0.0.0/8", "203.0.113.9"), ("10.0.0.0/8", "127.0.0.1")):
        settings = {"trusted_proxies": trusted, "access_log": True}
        async with (
            running_gateway(tmp_path / trusted[:2], valkey_url, prefix, **settings) as gateway,
            gateway.http() as http,
        ):
            for path in ("/v1/models", "/admin/v1/me"):
                caplog.clear()
                await http.get(path, headers=forwarded)
                await until(lambda: any(hasattr(r, "fields") for r in caplog.records))  # once all is sent
                assert [r.fields["client"] for r in caplog.records if hasattr(r, "fields")] == [client]
