"""Nobody without the right key has a byte of a body read, on any route; and what is read is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from gateway.api import docs_page
from gateway.api.access_rules import access_rules, rule_for
from gateway.api.data_plane_openapi import TAG
from gateway.api.health import VLLMS_PATHS
from gateway.config import Settings
from gateway.tenants.directory import TENANT_ROLES, Role
from tests.integration.uploading import Wire
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.routes import described

PUBLIC = {"/admin/v1/sign-in", "/finance/v1/credits/top-ups"}
"""For who has no key yet, and for what is signed instead."""
OPEN = {"/healthz", "/readyz", "/openapi.json", *VLLMS_PATHS} | {
    f"/docs{file}" for file in ("", "/start.js", "/swagger-ui-bundle.js", "/swagger-ui.css")
}
APPLY = "/admin/v1/apply"
RULES = access_rules(Settings.model_construct())


def allowed(method: str, path: str) -> frozenset[Role]:
    """Who may ask: as docs/reference/roles.md shows it, and test_routes_and_roles.py finds it."""
    return rule_for(RULES, path, method).roles or frozenset()


def routes(gateway: Gateway) -> Iterator[tuple[str, str]]:
    for path, operations in described()["paths"].items():
        for method, operation in operations.items():
            if TAG not in operation.get("tags", ()):  # of the data plane, which has a gate of its own
                yield method.upper(), path
    for route in (*gateway.app.api.routes, *docs_page.router.routes):  # not in the description
        if getattr(route, "path", None):
            yield "GET", route.path


async def keys_of_all_roles(gateway: Gateway) -> dict[str, str]:
    """By role; and those that no route takes."""
    await gateway.add_tenant("acme")
    keys = {Role.OPERATOR: OPERATOR_KEY, Role.TENANT: gateway.keys["acme"]}
    for role in set(Role) - keys.keys():
        keys[role] = await gateway.add_key(role, "acme" if role in TENANT_ROLES else "")
    revoked = await gateway.add_key(Role.OPERATOR, revoked=1)
    return {**keys, "revoked": revoked, "unknown": "fl_x_y", "none": ""}


async def ask(app: Any, method: str, path: str, key: str, length: int = 2) -> tuple[int, str, int]:
    """Status, error code, and how often the body was asked for."""
    reads, sent = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        if reads == 1:
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(m.get("body", b"") for m in sent[1:])
    code = json.loads(body)["error"]["code"] if sent[0]["status"] >= 400 else ""
    return sent[0]["status"], code, reads


async def test_each_route_refuses_each_wrong_key_before_it_reads_a_byte(gateway: Gateway):
    keys = await keys_of_all_roles(gateway)
    found = list(routes(gateway))
    assert len(found) > 50
    assert {path for _, path in found if not path.startswith(("/admin/", "/finance/"))} == OPEN | {"/metrics"}
    nobody = {"none": "missing_api_key", "unknown": "invalid_api_key", "revoked": "revoked_api_key"}
    for method, path in found:
        if path in OPEN | PUBLIC:
            continue
        for name, code in nobody.items():
            assert await ask(gateway.app, method, path, keys[name]) == (401, code, 0), (method, path, name)
        for role in Role:
            if role in allowed(method, path):
                continue
            refused = await ask(gateway.app, method, path, keys[role])
            assert refused == (403, "insufficient_role", 0), (method, path, role)
            # The routes' own dependencies are the second line.
            status, code, _ = await ask(gateway.app.api, method, path, keys[role])
            assert (status, code) == (403, "insufficient_role"), (method, path, role)
    signed = await ask(gateway.app, "POST", "/finance/v1/credits/top-ups", "", length=1 << 40)
    assert signed == (413, "body_too_large", 0)


async def test_a_body_that_says_it_is_too_long_is_refused_at_once(
    gateway: Gateway, subtests: pytest.Subtests
):
    await gateway.add_tenant("acme")
    for path, limit in (
        ("/admin/v1/tenants", 1024**2),
        ("/finance/v1/periods/2026-01/close", 1024**2),
        (APPLY, 16 * 1024**2),
        ("/finance/v1/bills", 64 * 1024**2),
        ("/admin/v1/adapters/upload?adapter=acme/support", 2 * 1024**3 + 1024**2 + 64 * 1024),
    ):
        with subtests.test(path=path):
            wire = await Wire.to(gateway.url)
            await wire.begin(limit + 1, path=path, content_type="application/json")
            status, headers, body = await wire.answer()
            assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
            assert headers["connection"] == "close"
            await wire.close()


async def test_a_body_in_chunks_is_counted_while_it_is_read(gateway: Gateway):
    for path in ("/admin/v1/tenants", "/finance/v1/periods/2026-01/close"):
        wire = await Wire.to(gateway.url)
        await wire.begin(None, path=path, content_type="application/json")
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        for _ in range(17):  # the last is the one too many; its end never comes
            await wire.send(chunk)
        assert await wire.refusal() == (413, "body_too_large")
        await wire.close()


async def test_a_client_that_is_still_sending_can_read_why_it_was_refused(gateway: Gateway):
    async with gateway.http("wrong") as http:
        for size in (3_000_000, 20_000_000):
            answer = await http.post(APPLY, content=b" " * size)
            assert (answer.status_code, answer.headers["connection"]) == (401, "close")
    await gateway.add_tenant("acme")
    async with gateway.http(gateway.keys["acme"]) as http:
        answer = await http.post("/v1/chat/completions", content=b" " * 20_000_000)
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")


TOO_MUCH = {
    "objects": ("/admin/v1/tenants", b"[" + b"{}," * 300_000 + b"{}]", "body_too_complex"),
    "nesting": ("/admin/v1/tenants", b"[" * 5_000, "body_too_complex"),
    "levels": ("/admin/v1/tenants", b'{"name":' + b"[" * 70 + b"]" * 70 + b"}", "body_too_complex"),
    "apply": (APPLY, b'{"florin":1,"x":[' + b"{}," * 5_000_000 + b"{}]}", "body_too_complex"),
    "half": (APPLY, b"{", "invalid_json"),
    "nothing": ("/admin/v1/tenants", b"", "invalid_json"),
}


async def test_what_would_become_too_much_is_refused_before_it_is_parsed(
    gateway: Gateway, subtests: pytest.Subtests
):
    async with gateway.http() as http:
        for case, (path, body, code) in TOO_MUCH.items():
            with subtests.test(case):
                answer = await http.post(path, content=body, headers={"content-type": "application/json"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
                assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_what_was_read_at_the_gate_is_what_the_route_gets(gateway: Gateway):
    async def pieces():
        for byte in b'{"name": "acme", "base_access": true}':
            yield bytes([byte])

    async with gateway.http() as http:
        answer = await http.post(
            "/admin/v1/tenants", content=pieces(), headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["name"]) == (201, "acme")
        again = await http.post("/admin/v1/tenants", json={"name": "acme", "base_access": True})
    assert again.status_code == 200


async def test_an_answer_goes_on_while_its_reader_is_slow_and_the_connection_is_used_again(gateway: Gateway):
    """Large answers go out in pieces; the whole arrives all the same."""
    async with gateway.http() as http:
        first = await http.get("/openapi.json")
        second = await http.get("/openapi.json")
    assert len(first.content) == int(first.headers["content-length"]) > 65_536
    assert first.content == second.content
    assert "connection" not in first.headers


async def test_who_guesses_keys_is_slowed_down_and_valid_keys_never_are(tmp_path, valkey_url, prefix):
    settings = {"failed_keys_per_address": 2, "trusted_proxies": "127.0.0.1", "oidc_issuer": "http://127.0.0.1:9",
                "oidc_client_id": "florin", "oidc_roles": "ops=operator"}  # fmt: skip
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        known = await gateway.add_tenant("acme")

        async def ask(path: str, key: str, address: str) -> httpx2.Response:
            async with gateway.http(key) as http:
                return await http.get(path, headers={"x-forwarded-for": f"198.51.100.66, {address}"})

        async def codes(path: str, key: str, address: str, times: int = 1) -> list[str]:
            return [(await ask(path, key, address)).json()["error"]["code"] for _ in range(times)]

        guess, slowed = "invalid_api_key", "too_many_failed_keys"
        assert await codes("/v1/models", "fl_x_y", "192.0.2.1", 3) == [guess, guess, slowed]
        answer = await ask("/admin/v1/tenants", "fl_x_y", "192.0.2.1")  # all sides count together
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert await codes("/admin/v1/me", "eyJ.x.y", "192.0.2.1") == [slowed]
        assert await codes("/admin/v1/me", "eyJ.x.y", "192.0.2.2") == ["invalid_token"]
        assert (await ask("/v1/models", known, "192.0.2.1")).status_code == 200
        assert (await ask("/admin/v1/tenants", OPERATOR_KEY, "192.0.2.1")).status_code == 200
        async with gateway.http("none") as http:
            for form in ({"key": "fl_x_y"}, {"link": "x"}):
                page = await http.post(
                    "/console/sign-in", data=form, headers={"x-forwarded-for": "192.0.2.1"}
                )
                assert (page.status_code, "Too many unknown keys" in page.text) == (429, True)
            good = await http.post(
                "/console/sign-in", data={"key": OPERATOR_KEY}, headers={"x-forwarded-for": "192.0.2.1"}
            )
            assert good.status_code == 303
        assert await codes("/v1/models", "fl_x_y", "192.0.2.3") == [guess]
        page = await ask("/metrics", OPERATOR_KEY, "192.0.2.1")
        assert 'florin_failed_keys_total{answer="429"}' in page.text
