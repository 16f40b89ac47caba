"""Live parts of pages: how many may be open, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from starlette.requests import ClientDisconnect

from gateway.console.api_client import ApiError
from gateway.console.visit import LiveStreams
from gateway.tenants.sessions import Session

SESSION = Session("digest", "key", "csrf", 1 << 62)


class Drawing:
    """What `draw` returns, one after the other; an error is raised."""

    def __init__(self, *answers: str | ApiError) -> None:
        self._answers = list(answers)

    async def __call__(self) -> str:
        answer = self._answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


async def valid(_: Session) -> bool:
    return True


@pytest.fixture
def streams():
    return LiveStreams(valid, lambda: False)


async def events(response) -> list[bytes]:
    return [chunk async for chunk in response.body_iterator]


async def test_a_stream_ends_quietly_when_the_api_refuses(streams):
    gone = ApiError(503, "store_unavailable", "gone")
    response = await streams.open(SESSION, Drawing("one", "one", "two", gone), 0.0)
    assert await events(response) == [
        b"event: message\ndata: one\n\n",
        b"event: message\ndata: two\n\n",
    ]


async def test_what_is_refused_at_first_begins_no_stream(streams):
    with pytest.raises(ApiError):
        await streams.open(SESSION, Drawing(ApiError(403, "insufficient_role", "no")), 0.0)


async def abandoned(response) -> None:
    """The browser has gone before the first event."""

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        raise OSError

    await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)


async def test_a_place_is_taken_at_once_and_given_back_at_the_end(streams):
    drawn = asyncio.Event()

    async def draw() -> str:
        await drawn.wait()
        return "one"

    opening = [asyncio.create_task(streams.open(SESSION, draw, 0.0)) for _ in range(50)]
    await asyncio.sleep(0)
    drawn.set()
    responses = await asyncio.gather(*opening)
    opened = [response for response in responses if response.status_code == 200]
    assert len(opened) == LiveStreams.MOST_OF_SESSION
    with pytest.raises(ApiError):
        await streams.open(replace(SESSION, digest="other"), Drawing(ApiError(503, "x", "x")), 0.0)
    for response in opened:
        with contextlib.suppress(ClientDisconnect):
            await abandoned(response)
    assert streams._open == {}
    assert (await streams.open(SESSION, Drawing("one"), 0.0)).status_code == 200
