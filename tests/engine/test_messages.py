"""/v1/messages on real engines: the same text as a chat's, exact counts, tools and schemas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.test_features import CITIES, TICKET, WEATHER
from tests.engine.test_gateway import counters, running
from tests.support.harness import Gateway
from tests.support.waiting import until

ASKED: Any = [{"role": "user", "content": "What is the weather in Bern?"}]
TOOL: Any = {
    "name": "weather",
    "description": WEATHER["function"]["description"],
    "strict": True,
    "input_schema": WEATHER["function"]["parameters"],
}
LONG = {"type": "object", "properties": {"a": {"type": "string", "minLength": 600}}, "required": ["a"]}
"""An answer that must be long, so that a client can leave in the middle."""
# Anthropic's client no longer has sampling parameters of its own.
GREEDY: Any = {"model": "support", "max_tokens": 200, "extra_body": {"temperature": 0}}


@pytest.fixture
async def acme(gateway: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    key = gateway.keys["acme"]
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key, timeout=120) as client:
        yield client


async def test_text_and_counts(
    gateway: Gateway, acme: anthropic.AsyncAnthropic, clean_fleet: Fleet, demo_model: DemoModel
):
    question = demo_model.questions[0]
    turns: Any = [{"role": "user", "content": question}]
    await acme.messages.create(**GREEDY | {"max_tokens": 1}, messages=turns)  # loads it, with probes
    known = {record.id for record in await gateway.usage("acme")}
    before = counters(clean_fleet)
    async with gateway.client("acme", timeout=120) as openai:
        chat = await openai.chat.completions.create(**GREEDY, messages=turns)
    whole = await acme.messages.create(**GREEDY, messages=turns)
    async with acme.messages.stream(**GREEDY, messages=turns) as stream:
        words = "".join([word async for word in stream.text_stream])
        streamed = await stream.get_final_message()
    answer = demo_model.adapters["acme"].answers[question]
    assert chat.choices[0].message.content == whole.content[0].text == streamed.content[0].text == answer
    assert words == answer
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    for message in (whole, streamed):
        read = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert (read, message.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    counted = await acme.messages.count_tokens(model="support", messages=turns)
    assert counted.input_tokens == chat.usage.prompt_tokens
    spent = counters(clean_fleet) - before
    assert spent["prompt"] == 3 * chat.usage.prompt_tokens  # counting is no work of the model
    assert spent["generation"] == 3 * chat.usage.completion_tokens
    records = [record for record in await gateway.usage("acme") if record.id not in known]
    assert len(records) == 4
    assert sum(record.completion_tokens for record in records) == spent["generation"]

    said = answer.partition(":")[0] + ":"  # cut where a token ends
    rest = await acme.messages.create(**GREEDY, messages=[*turns, {"role": "assistant", "content": said}])
    assert said + rest.content[0].text == answer
    stopped = await acme.messages.create(**GREEDY, messages=turns, stop_sequences=[answer[4:9]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", answer[4:9])
    assert stopped.content[0].text == answer[:4]


async def test_what_a_client_leaves_is_counted_to_the_token(
    gateway: Gateway, acme: anthropic.AsyncAnthropic, clean_fleet: Fleet
):
    schema: Any = {"format": {"type": "json_schema", "schema": LONG}}
    await acme.messages.create(**GREEDY | {"max_tokens": 1}, messages=ASKED, output_config=schema)
    known = {record.id for record in await gateway.usage("acme")}
    before = counters(clean_fleet)
    deltas = 0
    async with acme.messages.stream(
        **GREEDY | {"max_tokens": 400}, messages=ASKED, output_config=schema
    ) as stream:
        async for event in stream:
            deltas += event.type == "content_block_delta"
            if deltas == 8:
                break

    async def ended() -> list[Any]:
        return [record for record in await gateway.usage("acme") if record.id not in known]

    [record] = await until(ended)
    await until(lambda: not running(clean_fleet))
    spent = counters(clean_fleet) - before
    assert (record.outcome, record.usage_source, record.billable) == ("client_abort", "engine_partial", True)
    assert record.prompt_tokens == spent["prompt"]
    # The engine ends a request some steps after the client has left.
    assert deltas <= record.completion_tokens <= spent["generation"] < 400


async def test_tools_and_schemas(gateway: Gateway, acme: anthropic.AsyncAnthropic):
    must: Any = {"type": "tool", "name": "weather"}
    answer = await acme.messages.create(**GREEDY, messages=ASKED, tools=[TOOL], tool_choice=must)
    async with acme.messages.stream(**GREEDY, messages=ASKED, tools=[TOOL], tool_choice=must) as stream:
        streamed = await stream.get_final_message()
    for message in (answer, streamed):
        [use] = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == "tool_use"
        assert use.name == "weather"
        assert use.input in CITIES
    result: Any = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "Snow"}],
    }
    turns = [*ASKED, answer.to_param(), result]
    counted = await acme.messages.count_tokens(model="support", messages=turns, tools=[TOOL])
    told = await acme.messages.create(**GREEDY, messages=turns, tools=[TOOL], tool_choice={"type": "none"})
    assert told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert told.content
    parsed = await acme.messages.create(
        **GREEDY, messages=ASKED, output_config={"format": {"type": "json_schema", "schema": TICKET}}
    )
    assert set(parsed.content[0].text.split('"')) >= {"topic", "urgent"}
