"""Names of an engine's classes in errors.

Source: a survey of clients
Sent: a message whose content is a number; five `stop` strings; a tool call's `arguments` as an object.
Right: the field in the API's own words (`messages.2.content`), and the error of what the client meant.
Why: clients got `messages.2.ChatCompletionDeveloperMessageParam.content`, and of five stop strings that the field "should be
a valid string".
"""

from __future__ import annotations

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.unit.gateway.routing.test_engine_messages import OTHER_ROLES, OTHER_TOOL_CALLS, TOO_MANY_STOPS


async def test_they_never_reach_clients(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        for message, param, words in (
            (OTHER_ROLES, "messages.2.content", "should be a valid string"),
            (TOO_MANY_STOPS, "stop", "at most 4 items"),
            (OTHER_TOOL_CALLS, "function.arguments", "should be a valid string"),
        ):
            for engine in deployment.engines:
                engine.faults.status, engine.faults.message = 400, message
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="support", messages=HELLO)
            assert refused.value.param == param
            assert words in refused.value.message
            assert "Param" not in refused.value.response.text
