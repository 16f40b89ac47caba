"""Rubbish gets the right status and an OpenAI error object, and never reaches an engine."""

from __future__ import annotations

import httpx2
import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.integration.uploading import Wire
from tests.support.harness import Gateway
from tests.support.waiting import until

CHAT = "/v1/chat/completions"
BODY = b'{"model": "support", "messages": [{"role": "user", "content": "Hi"}]}'


BODIES = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"\x00\xff\xfe", "invalid_json"),
    (BODY.decode().encode("utf-16"), "invalid_json"),
    (b'{"model": "support", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "invalid_json"),
    (b"[" * 15_000, "body_too_complex"),
    (b"[" * 200_000, "body_too_complex"),
    (BODY[:-3] + b', "tool_calls": [{"x": ' + b"[" * 400 + b"]" * 400 + b"}]}]}", "body_too_complex"),
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
]


async def test_bodies(deployment: Deployment, subtests: pytest.Subtests):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        for content, code in BODIES:
            with subtests.test(content=content[:80], code=code):
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
        answer = await http.post(CHAT, content=b"x" * (17 * 1024 * 1024))
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        try:
            answer = await http.post(CHAT, content=endless())
        except httpx2.TransportError:
            return  # the gateway has answered and closed; the client was still sending
        assert answer.status_code == 413


async def test_methods(deployment: Deployment):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.get(CHAT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = await http.post("/v1/models")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_each_becomes_the_clients_own_exception(deployment: Deployment):
    key = deployment.gateway.keys["acme"].split("_")[1]
    async with deployment.gateway.http() as http, deployment.gateway.client("acme") as client:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="support", messages=[])
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nothing", messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        await client.models.list()
        assert (await http.delete(f"/admin/v1/keys/{key}")).status_code == 200
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            await client.models.list()


async def test_disconnect_during_the_body_is_not_an_error(gateway: Gateway, caplog):
    tasks = gateway.server.server_state.tasks
    for path in ("/finance/v1/bills", "/admin/v1/tenants", "/admin/v1/apply"):
        wire = await Wire.to(gateway.url)
        await wire.begin(100, path=path, content_type="application/json")
        await wire.send(b"half")
        await until(lambda: tasks)  # its handler waits for the rest
        await wire.close()
        await until(lambda: not tasks)
    assert [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []
