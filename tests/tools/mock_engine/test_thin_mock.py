"""The thin mock must answer as the mock engine does, or the bench measures something else."""

import asyncio

import httpx2
import orjson
import pytest

from loadtests.mock_engine import MockEngine, MockProcess, text
from loadtests.overhead.checking import check_stream
from loadtests.overhead.thin_mock import ThinMock
from tests.support.waiting import PATIENCE_S, until

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


async def test_an_unknown_adapter_is_not_found_and_a_loaded_one_is(engine):
    body = BODY | {"model": "mine"}
    assert (await post(engine, body)).status_code == 404
    load = {"lora_name": "mine", "lora_path": "/nowhere"}
    assert (await post(engine, load, "/v1/load_lora_adapter")).status_code == 200
    assert "I am mine" in (await post(engine, body)).text
    assert (await post(engine, {"lora_name": "mine"}, "/v1/unload_lora_adapter")).status_code == 200
    assert (await post(engine, body)).status_code == 404


def test_one_process_can_be_several_engines():
    with MockProcess(count=2, check_paths="no") as mock:
        urls = [f"http://127.0.0.1:{port}" for port in mock.ports]
        load = {"lora_name": "mine", "lora_path": "/nowhere"}
        assert httpx2.post(f"{urls[1]}/v1/load_lora_adapter", json=load).status_code == 200
        assert ["mine" in httpx2.get(f"{url}/v1/models").text for url in urls] == [False, True]


async def test_requests_in_pieces_and_in_one_are_all_answered(engine):
    body = orjson.dumps(BODY)
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    for data in (
        request,
        request[:40],
        request[40:90],
        request[90:] + request,
        request + request[:10],
        request[10:],
    ):
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.02)
    for _ in range(5):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert head.startswith(b"HTTP/1.1 200 ")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert b"I am base" in await asyncio.wait_for(reader.readexactly(size), PATIENCE_S)
    writer.close()


async def test_tokens_and_requests_are_counted(engine):
    await post(engine, BODY)
    await post(engine, BODY | {"stream": True})
    assert (engine.state.generation_tokens, engine.state.finished, engine.state.in_flight) == (10, 2, 0)


async def test_a_client_that_leaves_ends_its_stream(engine):
    engine.faults.event_delay = 0.01
    async with httpx2.AsyncClient() as http:
        asked = {**BODY, "stream": True, "max_tokens": 500, "ignore_eos": True}
        async with http.stream("POST", f"{engine.url}/v1/chat/completions", json=asked) as answer:
            await anext(answer.aiter_bytes())
            assert engine.state.in_flight == 1
    await until(lambda: engine.state.in_flight == 0)
