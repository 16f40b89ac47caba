"""A batch on real engines: each line answered by its adapter, once, and counted as the engine counts."""

from __future__ import annotations

import asyncio
import json

from deploy.demo.model import DemoModel
from tests.integration.test_batches import lines, submitted
from tests.support.harness import Gateway

SECONDS = 120
URL = "/v1/chat/completions"


def body(question: str) -> dict[str, object]:
    return {"model": "support", "messages": [{"role": "user", "content": question}], "temperature": 0}


async def test_each_line_is_answered_by_its_adapter_and_counted(
    gateway: Gateway, demo_model: DemoModel
) -> None:
    answers = demo_model.adapters["acme"].answers
    asked = {f"line-{n}": question for n, question in enumerate([*answers] * 2)}
    content = "".join(
        json.dumps({"custom_id": name, "method": "POST", "url": URL, "body": body(question)}) + "\n"
        for name, question in asked.items()
    )
    async with gateway.client("acme", timeout=60) as client:
        batch = await submitted(client, content.encode())
        async with asyncio.timeout(SECONDS):
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                assert batch.status in {"validating", "in_progress", "finalizing"}, batch
                await asyncio.sleep(0.1)
        found = {
            line["custom_id"]: line["response"]["body"]
            for line in await lines(client, batch.output_file_id or "")
        }
    assert found.keys() == asked.keys()
    for name, question in asked.items():
        assert found[name]["choices"][0]["message"]["content"] == answers[question], question
    billed = [record for record in await gateway.usage("acme") if record.billable]
    assert len(billed) == len(asked)
    assert {record.service_tier for record in billed} == {"batch"}
    assert all(record.usage_source == "engine_final" for record in billed)
    counts = [answer["usage"] for answer in found.values()]
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(getattr(record, name) for record in billed) == sum(count[name] for count in counts)
