"""What clients of OpenAI's Responses API always send is taken, and what they always read is there.

Source: vllm's own decision to ignore `store`; a survey of clients
Sent: `store: true`; requests without `temperature`, `top_p`, `presence_penalty` or `frequency_penalty`; a count of the
    tokens of an input.
Right: the answer, whose `store` is false; numbers for all four, those sent or OpenAI's defaults; the count that the answer
    then has. What needs a stored answer is still refused with the reason.
Why: OpenAI's API stores by default, so its clients send `store: true` without anyone having asked for it; nothing is lost
    as long as nobody fetches what was stored. Clients with a schema of the answer fail at null for a number.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.integration.conftest import Deployment


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_to_be_stored(deployment: Deployment, streamed: bool):
    async with deployment.gateway.client("acme") as client:
        asked: Any = {"model": "support", "input": "Hello!", "store": True}
        if streamed:
            stream = await client.responses.create(**asked, stream=True)
            *_, last = [event async for event in stream]
            answer = last.response
        else:
            answer = await client.responses.create(**asked)
        assert answer.to_dict()["store"] is False
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="support", input="And then?", previous_response_id=answer.id)
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError, match="`store` must be true or false"):
            await client.responses.create(model="support", input="Hello!", extra_body={"store": "yes"})


NUMBERS = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@pytest.mark.parametrize("sent", [{}, {"temperature": 0.5, "presence_penalty": -1}, dict.fromkeys(NUMBERS)])
async def test_its_numbers(deployment: Deployment, sent: dict[str, Any]):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        answer = (
            await client.post("/v1/responses", json={"model": "support", "input": "Hello!", **sent})
        ).json()
    given = {name: value for name, value in sent.items() if value is not None}
    assert {name: answer[name] for name in NUMBERS} == NUMBERS | given
    [call] = deployment.calls()
    assert {name: call.body[name] for name in NUMBERS if name in call.body} == given


async def test_a_count_of_its_tokens(deployment: Deployment):
    tools: Any = [{"type": "function", "name": "find", "parameters": {"type": "object"}}]
    asked: Any = {"model": "support", "input": "Hello!", "instructions": "Be brief.", "tools": tools}
    async with deployment.gateway.client("acme") as client:
        count = await client.responses.input_tokens.count(**asked)
        answer = await client.responses.create(**asked)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.input_tokens.count(model="support", input=[])
    assert count.object == "response.input_tokens"
    assert count.input_tokens == answer.usage.input_tokens
    assert refused.value.param == "input"
    records = await deployment.gateway.usage("acme")
    assert [record.prompt_tokens for record in records] == [0, count.input_tokens]  # a count is free
