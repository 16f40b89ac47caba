"""The thin mock must answer as the mock engine does, or the bench measures something else."""

import httpx2
import pytest

from loadtests.mock_engine import MockEngine, text
from loadtests.overhead.checking import check_stream
from loadtests.overhead.thin_mock import ThinMock
from tests.support.waiting import until

BODY = {"model": "base", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


@pytest.fixture
async def engine():
    async with ThinMock(base="base", log=0, check_paths=False) as engine:
        yield engine


async def post(engine, body, path="/v1/chat/completions") -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.post(engine.url + path, json=body)


def unlike(answer: dict) -> dict:
    """Without what differs from one request to the next."""
    return answer | {"id": "", "created": 0}


async def test_a_whole_answer_is_the_mock_engines(engine):
    async with MockEngine(base="base", log=0) as rich:
        expected, answer = await post(rich, BODY), await post(engine, BODY)
    assert (answer.status_code, unlike(answer.json())) == (200, unlike(expected.json()))


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
async def test_a_stream_is_the_mock_engines_with_times(engine, options, tokens):
    body = BODY | {"stream": True, "stream_options": options, "max_tokens": tokens}
    async with MockEngine(base="base", log=0) as rich:
        expected, answer = await post(rich, body), await post(engine, body)
    assert answer.text.count("data: ") == expected.text.count("data: ")
    if not options:
        finish = "length" if tokens < 8 else "stop"
        problem, events = check_stream(200, [(1e9, answer.content)], text("base", min(tokens, 8), finish))
        assert problem == ""
        assert [event.sent > 0 for event in events] == [False] + [True] * min(tokens, 8)
        times = [event.sent for event in events]
        assert times == sorted(times)


async def test_a_client_that_leaves_ends_its_stream(engine):
    engine.faults.event_delay = 0.01
    async with httpx2.AsyncClient() as http:
        asked = {**BODY, "stream": True, "max_tokens": 500, "ignore_eos": True}
        async with http.stream("POST", f"{engine.url}/v1/chat/completions", json=asked) as answer:
            await anext(answer.aiter_bytes())
            assert engine.state.in_flight == 1
    await until(lambda: engine.state.in_flight == 0)
