"""A byte order mark before JSON is no part of it.

Source: a survey of clients
Sent: a batch's file, and a chat's body, that begin with the byte order mark of UTF-8.
Right: every line of the batch is answered, and so is the chat.
Why: tools on Windows write it (PowerShell's `Out-File -Encoding utf8`, Excel), nobody sees it, and vLLM's server skips it.
"""

from __future__ import annotations

from codecs import BOM_UTF8

import orjson

from tests.integration.conftest import Deployment
from tests.integration.test_batches import ended, jsonl, lines, submitted


async def test_a_batch_whose_file_begins_with_it(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        batch = await ended(client, (await submitted(client, BOM_UTF8 + jsonl(2))).id)
        assert batch.status == "completed", batch.errors
        answered = await lines(client, batch.output_file_id)
    assert [line["custom_id"] for line in answered] == ["line-0", "line-1"]


async def test_a_chat_whose_body_begins_with_it(deployment: Deployment):
    body = orjson.dumps({"model": "support", "messages": [{"role": "user", "content": "Hello!"}]})
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        response = await client.post("/v1/chat/completions", content=BOM_UTF8 + body)
    assert response.status_code == 200, response.text
