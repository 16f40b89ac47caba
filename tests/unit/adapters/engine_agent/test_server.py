"""The agent's own server, with clients that do not behave."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from adapters.engine_agent.server import AgentServer
from tests.support.waiting import PATIENCE_S


async def opened(*, notices: list[float] | None = None, running: bool = True) -> AgentServer:
    cache: Any = None  # no request comes so far
    noted = [] if notices is None else notices
    desk = AgentServer(cache, dict, noted.append, lambda: running, lambda key: key == b"own", token="t")
    await desk.open("127.0.0.1", 0)
    return desk


async def post(desk: AgentServer, path: str, key: str = "", body: Any = None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        return (
            await http.post(f"http://127.0.0.1:{desk.port}{path}", json=body, headers=headers)
        ).status_code


async def test_a_client_that_never_ends_its_request_does_not_hold_up_the_agents_end():
    desk = await opened()
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
    head = b"POST /stage HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t\r\ncontent-length: 10\r\n"
    writer.write(head + b"expect: 100-continue\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")  # 100: the route waits for the body
    async with asyncio.timeout(PATIENCE_S):
        await desk.close()
    writer.close()


async def test_a_spot_notice_needs_the_gateways_token_or_the_hosts_key():
    notices: list[float] = []
    desk = await opened(notices=notices)
    for key in ("", "else", "owned"):
        assert await post(desk, "/spot-notice", key, {"seconds": 30}) == 401
    assert notices == []
    assert await post(desk, "/spot-notice", "own", {"seconds": 30}) == 200
    assert await post(desk, "/spot-notice", "t", {"seconds": 5}) == 200
    assert notices == [30, 5]
    desk.token = ""  # before its registration
    assert await post(desk, "/spot-notice", "", {"seconds": 30}) == 401
    await desk.close()


@pytest.mark.parametrize("body", [None, [], {}, {"seconds": "soon"}, {"seconds": -1}, {"seconds": 1e9}])
async def test_a_spot_notice_says_how_long(body):
    notices: list[float] = []
    desk = await opened(notices=notices)
    assert await post(desk, "/spot-notice", "own", body) == 400
    assert notices == []
    await desk.close()


@pytest.mark.parametrize(
    ("key", "running", "status"), [("t", True, 200), ("t", False, 409), ("own", True, 401)]
)
async def test_only_the_gateway_restarts_the_engine(key, running, status):
    desk = await opened(running=running)
    assert await post(desk, "/restart", key) == status
    await desk.close()
