"""When a stream that has nothing to send gets a comment, by hand: the clock is the test's."""

from __future__ import annotations

import pytest

from gateway.dataplane.exchange import Exchange
from gateway.dataplane.keep_alives import KeepAlives
from gateway.errors import FlorinError

ADAPTER = (b"x-florin-adapter", b"acme/support@v1")
ENGINE = (b"x-florin-engine", b"a")
COMMENT = b": keep-alive\n\n"


class Client:
    """A transport. Mutable: what it has sent."""

    headers: list[tuple[bytes, bytes]] = []  # noqa: RUF012  # never changed
    first_headers: dict[bytes, bytes] = {}  # noqa: RUF012  # likewise
    ticket = None

    def __init__(self) -> None:
        self.heads: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self.body = b""
        self.reads = True
        self.counted = True

    @property
    def sent(self) -> int | None:
        return len(self.body) if self.counted else None

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.heads.append((status, headers))

    async def respond(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, linger: bool
    ) -> None:
        del linger
        self.heads.append((status, headers))
        self.body += body

    def write_now(self, data: bytes) -> bool:
        self.body += data if self.reads else b""
        return self.reads

    async def write(self, data: bytes) -> None:
        self.body += data

    async def end(self, data: bytes) -> None:
        self.body += data


class Watched:
    """One stream whose interval is 15 s. Mutable: the clock."""

    def __init__(self, client: Client, interval: float = 15.0) -> None:
        self.now = 100.0
        self.client, self.exchange = client, Exchange(client)  # type: ignore[arg-type]
        self.exchange.payload = b"{}"
        self.exchange.extra_headers = [ADAPTER, ENGINE]
        self.keep_alives = KeepAlives(interval, clock=lambda: self.now)
        self.keep_alives.watch(self.exchange, [ADAPTER])

    async def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            await self.keep_alives.look()


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def watched(client: Client) -> Watched:
    return Watched(client)


async def test_silence_begins_the_response_and_the_request_can_still_be_retried(watched, client):
    await watched.wait(14)
    assert client.heads == []
    await watched.wait(1)
    assert client.body == COMMENT
    ((status, headers),) = client.heads
    assert status == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in headers
    assert ADAPTER in headers
    assert ENGINE not in headers, "another engine may answer"
    assert watched.exchange.payload
    await watched.wait(30)
    assert client.body == 3 * COMMENT
    await watched.exchange.begin_stream()
    assert (len(client.heads), watched.exchange.payload) == (1, b"")


async def test_whatever_is_sent_breaks_the_silence(watched, client):
    for _ in range(10):
        await watched.wait(14)
        await watched.exchange.write(b"data: 1\n\n")
    assert COMMENT not in client.body
    await watched.wait(16)
    assert client.body.endswith(b"data: 1\n\n" + COMMENT)


async def test_an_error_keeps_its_status_until_then_and_is_an_event_afterwards(client):
    error = FlorinError("placement_timeout", "Too late.")
    await Watched(client).exchange.fail(error)
    assert client.heads[0][0] == 503
    late = Watched(later := Client())
    await late.wait(15)
    await late.exchange.fail(error)
    assert [status for status, _ in later.heads] == [200]
    assert later.body.startswith(COMMENT + b'data: {"error":')
    assert later.body.endswith(b"data: [DONE]\n\n")


async def test_nothing_follows_the_end(watched, client):
    await watched.exchange.begin_stream()
    await watched.exchange.end_stream(b"data: [DONE]\n\n")
    await watched.wait(60)
    assert client.body == b"data: [DONE]\n\n"


async def test_a_client_that_does_not_read_gets_none(watched, client):
    client.reads = False
    await watched.wait(60)
    assert client.body == b""


@pytest.mark.parametrize("interval", [0.0, 15.0])
async def test_no_other_is_watched(client, interval):
    client.counted = interval == 0
    watched = Watched(client, interval)
    await watched.wait(60)
    assert client.heads == []
