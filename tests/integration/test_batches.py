"""Files and batches, as OpenAI's client uses them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI

from tests.integration.conftest import Deployment

ENDED = {"completed", "failed", "expired", "cancelled"}


def jsonl(count: int, *, model: str = "support", **body: Any) -> bytes:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": f"Say {number}."}],
                "max_tokens": 3,
                **body,
            },
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def submitted(client: AsyncOpenAI, content: bytes, **fields: Any):
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    return await client.batches.create(input_file_id=file.id, **fields)


async def ended(client: AsyncOpenAI, batch_id: str):
    async with asyncio.timeout(20):
        while (batch := await client.batches.retrieve(batch_id)).status not in ENDED:
            await asyncio.sleep(0.02)
    return batch


async def lines(client: AsyncOpenAI, file_id: str) -> list[dict[str, Any]]:
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_a_batch_is_answered_and_billed_line_by_line(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        batch = await submitted(client, jsonl(20), metadata={"night": "1"})
        assert (batch.status, batch.request_counts.total, batch.metadata) == (
            "validating",
            20,
            {"night": "1"},
        )
        batch = await ended(client, batch.id)
        assert batch.status == "completed", batch.errors
        assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 0)
        found = await lines(client, batch.output_file_id)
        assert [line["custom_id"] for line in found] == [f"line-{n}" for n in range(20)]
        assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in found)
        assert batch.error_file_id is None
    records = await deployment.gateway.usage("acme")
    assert {r.service_tier for r in records} == {"batch"}
    assert sorted(r.request_id for r in records if r.billable) == sorted(
        line["response"]["request_id"] for line in found
    )
    used = [line["response"]["body"]["usage"] for line in found]
    assert sum(r.prompt_tokens for r in records) == sum(u["prompt_tokens"] for u in used)
    assert sum(r.completion_tokens for r in records) == sum(u["completion_tokens"] for u in used)
    assert batch.usage.output_tokens == sum(u["completion_tokens"] for u in used)
