"""The agent's own server, with clients that do not behave."""

from __future__ import annotations

import asyncio
from typing import Any

from adapters.engine_agent.server import AgentServer


async def test_a_client_that_never_ends_its_request_does_not_hold_up_the_agents_end():
    cache: Any = None  # no request comes so far
    desk = AgentServer(cache, dict, token="t")
    await desk.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
    head = b"POST /stage HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t\r\ncontent-length: 10\r\n"
    writer.write(head + b"expect: 100-continue\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")  # 100: the route waits for the body
    async with asyncio.timeout(20):
        await desk.close()
    writer.close()
