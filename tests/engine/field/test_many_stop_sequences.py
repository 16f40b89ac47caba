"""Anthropic's clients may send more stop sequences than OpenAI's four.

Source: a survey of clients
Sent: a message with 16 `stop_sequences`, of which the last one occurs, streamed and not, to an engine as Florin starts
    it; and 17.
Right: the answer ends before it, with `stop_reason` and `stop_sequence`, and as many output tokens as it took. 17 are
    refused with the field's name.
Why: vLLM 0.32 takes 4 unless VLLM_MAX_STOP_STRINGS says more. Only the engine can stop exactly: it sees text before any
    parser of reasoning or tools does, and at once. It takes 2 µs a token for 16 instead of 0.6 for 4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from deploy.demo.model import DemoModel
from tests.support.harness import Gateway


@pytest.fixture
async def acme(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=gateway.keys["acme"], timeout=120
    ) as client:
        yield client


@pytest.mark.usefixtures("clean_fleet")
async def test_the_last_of_sixteen_stops(
    gateway: Gateway, acme: anthropic.AsyncAnthropic, demo_model: DemoModel
):
    question = demo_model.questions[0]
    answer = demo_model.adapters["acme"].answers[question]
    last = answer[answer.rindex(" ") :][:4]
    before = answer[: answer.index(last)]
    asked: Any = {
        "model": "support", "max_tokens": 200, "messages": [{"role": "user", "content": question}],
        "stop_sequences": [*(f"<{number}>" for number in range(15)), last], "extra_body": {"temperature": 0},
    }  # fmt: skip
    whole = await acme.messages.create(**asked)
    async with acme.messages.stream(**asked) as stream:
        text = "".join([part async for part in stream.text_stream])
        streamed = await stream.get_final_message()
    assert whole.content[0].text == text == before
    for message in (whole, streamed):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", last)
    assert whole.usage.output_tokens == streamed.usage.output_tokens
    billed = [record.completion_tokens for record in await gateway.usage("acme") if record.billable]
    assert billed[-2:] == [whole.usage.output_tokens] * 2
    with pytest.raises(anthropic.BadRequestError, match="`stop_sequences` must list at most 16 strings"):
        await acme.messages.create(**asked | {"stop_sequences": [f"<{number}>" for number in range(17)]})
