"""Files, asked for by Anthropic's client.

Source: a survey of clients
Sent: `GET /v1/files?beta=true` with `anthropic-version`.
Right: an error in Anthropic's shape that says that files are OpenAI's here.
Why: the listing came in OpenAI's shape, in which that client finds no file's size or type.
"""

from __future__ import annotations

from tests.integration.conftest import Deployment


async def test_the_error_is_in_its_own_shape(deployment: Deployment):
    key = deployment.gateway.keys["acme"]
    async with deployment.gateway.http(key) as http:
        answer = await http.get("/v1/files?beta=true", headers={"anthropic-version": "2023-06-01"})
        assert answer.status_code == 404
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "not_found_error"
        assert "OpenAI's API" in answer.json()["error"]["message"]
        assert (await http.get("/v1/files", headers={"x-api-key": key})).json()["object"] == "list"
