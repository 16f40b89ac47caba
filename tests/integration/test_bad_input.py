"""Rubbish gets the right status and an OpenAI error object, and never reaches an engine."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.support.harness import OPERATOR_KEY
from tests.support.waiting import until

CHAT = "/v1/chat/completions"
BODY = b'{"model": "support", "messages": [{"role": "user", "content": "Hi"}]}'


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\x00\xff\xfe", "invalid_json"),
        (BODY.decode().encode("utf-16"), "invalid_json"),
        (b'{"model": "support", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "invalid_json"),
        (b"[" * 15_000, "invalid_json"),
        (b"[" * 200_000, "body_too_complex"),
        (BODY[:-3] + b', "tool_calls": [{"x": ' + b"[" * 400 + b"]" * 400 + b"}]}]}", "invalid_json"),
        (BODY[:-1] + b', "n": 1000000000}', "invalid_value"),
        (BODY[:-1] + b', "max_tokens": -1}', "invalid_value"),
        (b'{"model": "support", "messages": []}', "invalid_value"),
        (b'{"messages": [{"role": "user"}]}', "invalid_value"),
        (b'{"model": null, "messages": [{"role": "user"}]}', "invalid_value"),
        (b'{"model": "../../etc/passwd", "messages": [{"role": "user"}]}', "model_not_found"),
        (b'{"model": "a\\u0000b\\u001b[31m", "messages": [{"role": "user"}]}', "model_not_found"),
        (b'{"model": "acme/", "messages": [{"role": "user"}]}', "model_not_found"),
        (b'{"model": "/support", "messages": [{"role": "user"}]}', "model_not_found"),
        (b'{"model": "support@v0", "messages": [{"role": "user"}]}', "model_not_found"),
        (b'{"model": "support@v01", "messages": [{"role": "user"}]}', "model_not_found"),
        ('{"model": "support@v\u0661", "messages": [{"role": "user"}]}'.encode(), "model_not_found"),
        (b'{"model": "' + b"x" * 10_000 + b'", "messages": [{"role": "user"}]}', "model_not_found"),
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, bytes) else value,
)
async def test_bodies(deployment: Deployment, content: bytes, code: str):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.post(CHAT, content=content)
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    assert len(answer.content) < 1_000
    assert "Traceback" not in answer.text
    assert deployment.calls() == []


async def test_a_body_over_the_limit_is_not_read_to_its_end(deployment: Deployment):
    async def endless():
        for _ in range(10_000):
            yield b"x" * 65_536

    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.post(CHAT, content=b"x" * (5 * 1024 * 1024))
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        try:
            answer = await http.post(CHAT, content=endless())
        except httpx.TransportError:
            return  # the gateway has answered and closed; the client was still sending
        assert answer.status_code == 413


@pytest.mark.parametrize(
    ("header", "code", "status"),
    [
        (None, "missing_api_key", 401),
        ("Bearer", "missing_api_key", 401),
        ("Basic abc", "missing_api_key", 401),
        ("Bearer nonsense", "invalid_api_key", 401),
        ("Bearer " + "x" * 10_000, "invalid_api_key", 401),
        ("Bearer \xff\xfe", "invalid_api_key", 401),
    ],
    ids=["none", "empty", "basic", "unknown", "long", "binary"],
)
async def test_keys(deployment: Deployment, header: str | None, code: str, status: int):
    async with deployment.gateway.http() as http:
        del http.headers["authorization"]
        if header is not None:
            http.headers = httpx.Headers([(b"authorization", header.encode("latin-1"))])
        for path in (CHAT, "/v1/completions"):
            answer = await http.post(path, content=BODY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        for path in ("/v1/models", "/admin/v1/tenants", "/finance/v1/costs", "/metrics"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/embeddings/x", "/v1/", "/v1/modelsx",
        "/health", "/adapters", "/invocations", "/tokenizer_info", "/version", "/v1/chat/completions/render",
        "/%2e%2e/v1/models", "/v1/../health",
    ],
)  # fmt: skip
async def test_no_other_engine_route_is_reachable(deployment: Deployment, path: str):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        for method in ("GET", "POST", "DELETE"):
            answer = await http.request(method, path, content=BODY)
            assert answer.status_code in {404, 405}
            assert answer.json()["error"]["code"] in {"not_found", "method_not_allowed"}
    assert deployment.calls() == []
    assert not any(engine.state.admin for engine in deployment.engines)


async def test_methods(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.get(CHAT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = await http.post("/v1/models")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_each_becomes_the_clients_own_exception(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="support", messages=[])
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nothing", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()


async def test_a_revoked_key_is_refused(deployment: Deployment):
    key = deployment.gateway.keys["acme"].split("_")[1]
    async with deployment.gateway.http() as http, deployment.gateway.client("acme") as client:
        await client.models.list()
        assert (await http.delete(f"/admin/v1/keys/{key}")).status_code == 200
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            await client.models.list()


async def test_tenant_key_cannot_call_other_apis(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        for path in ("/admin/v1/tenants", "/admin/v1/placement", "/admin/v1/engines", "/metrics"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_role")


async def test_operator_key_cannot_call_models(deployment: Deployment):
    async with deployment.gateway.http() as http:
        for answer in (await http.post(CHAT, content=BODY), await http.get("/v1/models")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_role")


@pytest.mark.parametrize("path", ["/finance/v1/bills", "/admin/v1/tenants", "/admin/v1/apply"])
async def test_disconnect_during_the_body_is_not_an_error(deployment: Deployment, caplog, path: str):
    host, _, port = deployment.gateway.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OPERATOR_KEY}\r\ncontent-length: 100\r\n\r\n"
    writer.write(head.encode() + b"half")
    await writer.drain()
    await asyncio.sleep(0.2)  # now its handler waits for the rest
    writer.close()
    await writer.wait_closed()
    await until(lambda: not deployment.gateway.server.server_state.tasks)
    assert [record for record in caplog.records if record.exc_info] == []
