"""/v1/responses on real engines: the same text as a chat's, exact counts, tools and schemas."""

from __future__ import annotations

import json
from typing import Any

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.test_features import ASKED, CITIES, TICKET, WEATHER
from tests.engine.test_gateway import counters, running
from tests.support.harness import Gateway
from tests.support.waiting import until

GREEDY: dict[str, Any] = {"model": "support", "temperature": 0}
TOOL = {"type": "function", **WEATHER["function"]}


async def test_text_counts_and_aborts(gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel):
    question = demo_model.questions[0]
    async with gateway.client("acme", timeout=120) as client:
        await client.responses.create(**GREEDY, input="Hi", max_output_tokens=1)  # loads it, with probes
        known = {record.id for record in await gateway.usage("acme")}
        before = counters(clean_fleet)
        chat = await client.chat.completions.create(
            **GREEDY, messages=[{"role": "user", "content": question}]
        )
        whole = await client.responses.create(**GREEDY, input=question)
        async with client.responses.stream(**GREEDY, input=[{"role": "user", "content": question}]) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        answer = demo_model.adapters["acme"].answers[question]
        assert chat.choices[0].message.content == whole.output_text == streamed.output_text == answer
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer
        assert whole.status == streamed.status == "completed"
        counted = (chat.usage.prompt_tokens, chat.usage.completion_tokens)
        for response in (whole, streamed):
            assert (response.usage.input_tokens, response.usage.output_tokens) == counted
        spent = counters(clean_fleet) - before
        assert (spent["prompt"], spent["generation"]) == (3 * counted[0], 3 * counted[1])

        deltas = 0
        async with client.responses.with_streaming_response.create(
            **GREEDY, input=question, stream=True, max_output_tokens=900, extra_body={"ignore_eos": True}
        ) as response:
            async for line in response.iter_lines():
                deltas += line.startswith("event: response.output_text.delta")
                if deltas == 10:
                    break

    async def settled() -> Any:
        return [r for r in await gateway.usage("acme") if r.outcome == "client_abort"]

    [aborted] = await until(settled)
    await until(lambda: not running(clean_fleet))
    finished = [r for r in await gateway.usage("acme") if r.id not in known and r.outcome == "ok"]
    assert {r.usage_source for r in finished} == {"engine_final"}
    assert (aborted.usage_source, aborted.billable) == ("engine_partial", True)
    assert aborted.prompt_tokens == counted[0]
    generated = (counters(clean_fleet) - before)["generation"] - 3 * counted[1]
    # The engine ends a request some steps after the client has left.
    assert deltas <= aborted.completion_tokens <= generated < 900


async def test_tools_and_schemas(gateway: Gateway):
    async with gateway.client("acme", timeout=120) as client:
        common: dict[str, Any] = {**GREEDY, "input": ASKED, "max_output_tokens": 128}
        must = {"tool_choice": {"type": "function", "name": "weather"}}
        answer = await client.responses.create(**common, tools=[TOOL], **must)
        async with client.responses.stream(**common, tools=[TOOL], **must) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
        for response in (answer, streamed):
            [call] = [item for item in response.output if item.type == "function_call"]
            assert call.name == "weather"
            assert json.loads(call.arguments) in CITIES
            assert response.status == "completed"
        assert "response.function_call_arguments.done" in kinds
        told = {"type": "function_call_output", "call_id": call.call_id, "output": "Snow, 2 °C"}
        items = [*ASKED, *answer.output, told]
        assert (await client.responses.create(**{**common, "input": items}, tools=[TOOL])).output_text
        form = {"format": {"type": "json_schema", "name": "ticket", "schema": TICKET}}
        ticket = json.loads((await client.responses.create(**common, text=form)).output_text)
        assert set(ticket) == {"topic", "urgent"}
        scored = await client.responses.create(
            **common, include=["message.output_text.logprobs"], top_logprobs=2
        )
        scores = scored.output[0].content[0].logprobs
        assert "".join(score.token for score in scores).startswith(scored.output_text[:20])
        assert all(len(score.top_logprobs) == 2 for score in scores)
