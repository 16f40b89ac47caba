"""A stream says which configuration of the engine made it, as an answer that is not streamed does.

Source: a survey of clients
Sent: streamed chats and completions, with and without `stream_options.include_usage`, with one answer and with two.
Right: the last chunk before `[DONE]` has the engine's `system_fingerprint`.
Why: evaluation tools keep it beside each result. The engine sends it with the final counts, which Florin always asks for
    and hides from a client that did not.
"""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.mock_engine.answers import FINGERPRINT
from tests.integration.conftest import Deployment


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"stream_options": {"include_usage": True}}])
async def test_the_last_chunk_has_it(deployment: Deployment, more: dict[str, Any]):
    async with deployment.gateway.client("acme") as client:
        chat = [{"role": "user", "content": "Hello!"}]
        for stream in (
            await client.chat.completions.create(model="support", messages=chat, stream=True, **more),
            await client.completions.create(model="support", prompt="Hello!", stream=True, **more),
        ):
            *chunks, last = [chunk async for chunk in stream]
            assert last.system_fingerprint == FINGERPRINT
            assert not any(chunk.system_fingerprint for chunk in chunks)
