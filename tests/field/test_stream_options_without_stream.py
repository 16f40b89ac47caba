"""`stream_options` does not matter to an answer that is not streamed.

Source: a survey of clients
Sent: chats and completions without `stream`, or with it false, and `stream_options` of `{}` or `{"include_usage": true}`.
Right: the answer, which has its usage as ever. What is no option at all is still refused.
Why: frameworks set the option once for all requests. OpenAI and vLLM refuse it unless it is empty, but to refuse it
    helps nobody: the answer is the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Deployment

ASKED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello!"}]},
    "/v1/completions": {"prompt": "Hello!"},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"include_usage": False}])
async def test_it_is_ignored(deployment: Deployment, path: str, options: dict[str, Any]):
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as client:
        for stream in ({}, {"stream": False}):
            body = {"model": "support", **ASKED[path], **stream, "stream_options": options}
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            assert response.json()["usage"]["completion_tokens"] > 0
    assert not any("stream_options" in call.body for call in deployment.calls())
