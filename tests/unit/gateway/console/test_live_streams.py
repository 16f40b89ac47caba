"""Live parts of pages: how many may be open, and how they end."""

from __future__ import annotations

import pytest

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


async def test_browsers_that_leave_before_the_first_event_take_no_place(streams):
    for _ in range(3 * LiveStreams.MOST):
        response = await streams.open(SESSION, Drawing("one"), 0.0)
        assert response.status_code == 200
        await response.body_iterator.aclose()


async def test_a_session_has_six_streams_and_their_places_are_given_back(streams):
    opened = []
    for _ in range(LiveStreams.MOST_OF_SESSION):
        response = await streams.open(SESSION, Drawing("one"), 0.0)
        await anext(response.body_iterator)
        opened.append(response)
    assert (await streams.open(SESSION, Drawing("one"), 0.0)).status_code == 503
    await opened.pop().body_iterator.aclose()
    assert (await streams.open(SESSION, Drawing("one"), 0.0)).status_code == 200
    for response in opened:
        await response.body_iterator.aclose()
