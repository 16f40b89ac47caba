"""Tools on an engine that was started without them.

Source: vllm #9986
Sent: a chat with `tools` for an engine without `--enable-auto-tool-choice` and `--tool-call-parser`.
Right: the client reads what is switched off and who can change that; the operator finds the engine and the flags in the log
and in `florin doctor`.
Why: it is the most frequent mistake of all, and client, log and doctor were silent about the reason.
"""

from __future__ import annotations

import logging

import anthropic
import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.unit.gateway.routing.test_engine_messages import NO_TOOLS

TOOL = {"type": "function", "function": {"name": "secret", "parameters": {"type": "object"}}}


async def test_client_and_operator_learn_why(deployment: Deployment, caplog: pytest.LogCaptureFixture):
    gateway = deployment.gateway
    for engine in deployment.engines:
        engine.faults.status, engine.faults.message = 400, NO_TOOLS
    with caplog.at_level(logging.INFO):
        async with gateway.client("acme") as client:
            with pytest.raises(openai.BadRequestError, match="Tool calling is not switched on") as refused:
                await client.chat.completions.create(model="support", messages=HELLO, tools=[TOOL])
            assert (refused.value.code, refused.value.param) == ("feature_disabled", "tools")
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=gateway.keys["acme"]) as client:
            tool = {"name": "secret", "input_schema": {"type": "object"}}
            with pytest.raises(anthropic.BadRequestError, match="Tool calling is not switched on"):
                await client.messages.create(model="support", max_tokens=9, messages=HELLO, tools=[tool])
        async with gateway.http() as http:
            [finding] = [
                check
                for check in (await http.get("/admin/v1/doctor")).json()["data"]
                if check["check"] == "engine_lacks_flag"
            ]
    assert finding["subject"] in {"a", "b"}
    for text in (finding["message"], caplog.text):
        assert "--enable-auto-tool-choice and --tool-call-parser" in text
    assert "secret" not in caplog.text
