"""HTTP/1.1 against a real gateway, data plane and admin API on one connection. The cases of framing are in
tests/unit/gateway/transport."""

from __future__ import annotations

import json

import orjson
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.support.harness import OPERATOR_KEY
from tests.unit.gateway.transport.serving import Client, client

CHAT = "/v1/chat/completions"


@pytest.fixture
async def wire(deployment: Deployment):
    async with client(deployment.gateway.url.removeprefix("http://")) as connected:
        yield connected


def get(deployment: Deployment, path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    key = deployment.gateway.keys["acme"] if "/v1/" in path[:20] and "admin" not in path else OPERATOR_KEY
    lines = [f"{method} {path} HTTP/{version}", "host: a", f"authorization: Bearer {key}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chat(deployment: Deployment, *headers: str, version: str = "1.1", **fields: object) -> bytes:
    body = orjson.dumps({"model": "support", "messages": HELLO, "max_tokens": 3, **fields})
    lengths = (f"content-length: {len(body)}", *headers)
    return get(deployment, CHAT, *lengths, method="POST", version=version) + body


async def test_pipelined_requests_are_answered_in_order_whoever_serves_them(
    deployment: Deployment, wire: Client
):
    deployment.a.faults.update({"event_delay": 0.1})
    deployment.b.faults.update({"event_delay": 0.1})
    asked = [
        chat(deployment),  # the slow one
        get(deployment, "/admin/v1/tenants"),
        get(deployment, "/v1/models"),
        get(deployment, "/healthz", method="HEAD"),
        chat(deployment, model="nothing"),
        get(deployment, "http://a/v1/models?x"),
    ]
    await wire.send(b"".join(asked))
    found = [await wire.response(head=b"HEAD" in request[:4]) for request in asked]
    assert [response.status for response in found] == [200, 200, 200, 200, 404, 200]
    assert "choices" in json.loads(found[0].body)
    assert {tenant["name"] for tenant in json.loads(found[1].body)["data"]} == {"acme", "bolt", "corgi"}
    assert found[2].body == found[5].body


async def test_files_and_batches_answer_head_without_a_body(deployment: Deployment, wire: Client):
    async with deployment.gateway.client("acme") as acme:
        file = await acme.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    paths = ["/v1/files", f"/v1/files/{file.id}", f"/v1/files/{file.id}/content", "/v1/batches"]
    await wire.send(b"".join(get(deployment, path, method="HEAD") for path in paths))
    await wire.send(get(deployment, "/v1/models"))
    assert [(await wire.response(head=True)).status for _ in paths] == [200] * 4
    assert json.loads((await wire.response()).body)["object"] == "list"
