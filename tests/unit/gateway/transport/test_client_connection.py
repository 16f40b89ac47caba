"""A client's connection on real sockets: several requests, bodies, closing. Framing has its own tests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings
from gateway.transport import client_connection
from gateway.transport.connection_limits import connection_limits
from gateway.transport.http_request import HttpRequest
from gateway.transport.unfinished_heads import UnfinishedHeads
from tests.support.certificates import Authority
from tests.support.waiting import until
from tests.unit.gateway.transport.serving import App, Client, client, serving


def get(path: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: a", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"content-length: {len(body)}", *headers, method="POST") + body


@pytest.fixture
async def app():
    return App()


@pytest.fixture
async def address(app: App):
    async with serving(app) as found:
        yield found


@pytest.fixture
async def wire(address: str):
    async with client(address) as connected:
        yield connected


async def test_a_connection_carries_many_requests_of_both_kinds(app: App, wire: Client):
    for i in range(20):
        path = f"/v1/{i}" if i % 3 else f"/{i}"
        await wire.send(post(path, b"x" * i))
        response = await wire.response()
        assert (response.status, response.body) == (200, path.encode())
        assert "connection" not in response.headers
    assert [len(body) for _, _, body in app.served] == list(range(20))
    assert app.state.total_requests == 20


async def test_no_header_becomes_two(app: App, wire: Client, monkeypatch: pytest.MonkeyPatch):
    async def serve(request: HttpRequest) -> None:
        for value in (b"a\r\nset-cookie: b", b"a\nset-cookie: b"):
            with pytest.raises(ValueError, match="line break"):
                await request.respond(200, [(b"x-adapter", value)], b"")
        await request.respond(200, [], b"fine")

    monkeypatch.setattr(app, "serve", serve)
    await wire.send(get("/v1/x"))
    assert (await wire.response()).body == b"fine"


@pytest.mark.parametrize("slow", ["/v1/slow", "/slow"])
async def test_pipelined_requests_are_answered_in_order_and_one_at_a_time(app: App, wire: Client, slow: str):
    paths = [slow, "/v1/a", "/b", "/v1/c", "/d"]
    await wire.send(b"".join(post(path, path.encode()) for path in paths))
    await until(lambda: app.served)
    await asyncio.sleep(0.05)
    assert len(app.served) == 1
    app.release.set()
    assert [(await wire.response()).body.decode() for _ in paths] == paths
    assert [path for _, path, _ in app.served] == paths
    assert [waits for _, _, waits in app.tickets] == [False, True, True, True, True]
    await wire.send(get("/v1/after"))
    assert (await wire.response()).body == b"/v1/after"


async def test_a_pipelined_body_that_comes_later_is_read(app: App, wire: Client):
    late = post("/v1/late", b"y" * 300_000)
    await wire.send(get("/v1/slow") + late[:100_000])
    await asyncio.sleep(0.05)
    app.release.set()
    sending = asyncio.ensure_future(wire.send(late[100_000:]))
    assert [(await wire.response()).status for _ in range(2)] == [200, 200]
    await sending
    assert len(app.served[1][2]) == 300_000


async def test_what_is_pipelined_is_bounded(app: App, wire: Client):
    many = get("/v1/x") * 5_000
    await wire.send(get("/v1/slow") + many)
    await until(lambda: app.closed)
    assert app.closed == ["pipelining"]
    assert await wire.rest() == b""
    assert len(app.tickets) <= client_connection._MAX_PIPELINED + 2
    await until(lambda: app.connections.open == set())


async def test_a_client_that_leaves_while_pipelined_requests_wait_is_noticed(app: App, wire: Client):
    await wire.send(get("/v1/flood") + get("/v1/never"))
    await wire.reader.readexactly(1000)
    wire.writer.transport.abort()
    await until(lambda: app.lost)
    assert app.served == [("GET", "/v1/flood", b"")]
    await until(lambda: not app.state.tasks)


async def test_the_last_of_pipelined_requests_lets_disconnects_be_noticed_again(app: App, wire: Client):
    await wire.send(get("/v1/a") + get("/v1/slow"))
    assert (await wire.response()).status == 200
    await until(lambda: len(app.served) == 2)
    assert not app.made[0].flow.read_paused


# -- bodies


@pytest.mark.parametrize("path", ["/v1/x", "/x"])
async def test_bodies_in_any_pieces(app: App, wire: Client, path: str):
    body = bytes(range(256)) * 2
    chunks = b"".join(b"%x;e=%d\r\n%b\r\n" % (n, n, body[:n]) for n in (1, 16, 255)) + b"0\r\nx: y\r\n\r\n"
    chunked = get(path, "transfer-encoding: chunked", method="POST") + chunks
    await wire.drip(post(path, body))
    await wire.drip(chunked)
    await wire.send(post(path, body) + chunked)
    for _ in range(4):
        assert (await wire.response()).status == 200
    assert [sent for _, _, sent in app.served] == [body, body[:1] + body[:16] + body[:255]] * 2


@pytest.mark.parametrize("path", ["/v1/x", "/x"])
async def test_expect_100_continue(app: App, wire: Client, path: str):
    await wire.send(get(path, "content-length: 3", "Expect: 100-Continue", method="POST"))
    assert (await wire.response()).status == 100
    await wire.send(b"abc")
    assert (await wire.response()).status == 200
    # A client that does not wait is not told to go on.
    await wire.send(post(path, b"abc", "expect: 100-continue"))
    assert (await wire.response()).status == 200
    assert app.served == [("POST", path, b"abc")] * 2


@pytest.mark.parametrize("path", ["/v1/unread", "/unread"])
async def test_a_final_answer_instead_of_100_continue_closes(app: App, wire: Client, path: str):
    """The client may send the body or not: what follows could be either."""
    await wire.send(get(path, "content-length: 40", "expect: 100-continue", method="POST"))
    response = await wire.response()
    assert response.status in {200, 401}
    assert response.headers["connection"] == "close"
    await wire.send(get("/v1/smuggled"))
    assert await wire.rest() == b""
    assert ("GET", "/v1/smuggled", b"") not in app.served


async def test_an_unread_body_is_discarded_and_the_connection_used_again(app: App, wire: Client):
    await wire.send(post("/v1/unread", b"x" * 500_000) + get("/v1/after"))
    assert [(await wire.response()).status for _ in range(2)] == [401, 200]
    assert app.served == [("GET", "/v1/after", b"")]


@pytest.mark.parametrize("path", ["/v1/refused", "/v1/unread", "/unread"])
async def test_a_client_that_is_still_sending_gets_its_answer_before_the_connection_closes(
    app: App, wire: Client, path: str
):
    size = 8_000_000
    await wire.send(get(path, f"content-length: {size}", "connection: close", method="POST"))
    sending = asyncio.ensure_future(wire.send(b"x" * size))
    response = await wire.response()
    assert response.headers["connection"] == "close"
    await sending
    assert await wire.rest() == b""


# -- versions and closing


@pytest.mark.parametrize("path", ["/v1/stream", "/stream"])
async def test_http_1_0_gets_no_chunks(app: App, wire: Client, path: str):
    await wire.send(get(path, "connection: keep-alive", version="1.0") + get("/v1/smuggled"))
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert body == (b"abcd" if path == "/v1/stream" else b"/stream")
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close" in head
    assert len(app.served) == 1


@pytest.mark.parametrize("path", ["/v1/stream", "/stream"])
async def test_http_1_1_gets_chunks(app: App, wire: Client, path: str):
    await wire.send(get(path, "connection: close"))
    head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == (
        b"1\r\na\r\n2\r\nbc\r\n1\r\nd\r\n0\r\n\r\n"
        if path == "/v1/stream"
        else b"3\r\n/st\r\n4\r\nream\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize("path", ["/v1/x", "/x"])
@pytest.mark.parametrize("header", ["connection: close", "Connection: Keep-Alive, Close"])
async def test_nothing_after_connection_close_is_read(app: App, wire: Client, path: str, header: str):
    await wire.send(get(path, header) + b"\r\n" + get("/v1/smuggled") + b"rubbish\0")
    [response] = await wire.responses()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert app.served == [("GET", path, b"")]
    assert app.closed == []


@pytest.mark.parametrize("path", ["/v1/x", "/x"])
async def test_head(app: App, wire: Client, path: str):
    for _ in range(2):
        await wire.send(get(path, method="HEAD"))
        response = await wire.response(head=True)
        assert (response.status, response.headers["content-length"]) == (200, str(len(path)))


@pytest.mark.parametrize(
    "headers",
    [
        ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"),
        ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: eA=="),
    ],
    ids=["h2c", "websocket"],
)
@pytest.mark.parametrize("path", ["/v1/x", "/x"])
async def test_an_upgrade_is_answered_as_a_request_and_nothing_after_it_is_read(
    app: App, address: str, path: str, headers: tuple[str, ...]
):
    after = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + get("/v1/smuggled")
    chunked = get(path, "transfer-encoding: chunked", *headers, method="POST") + b"3\r\nabc\r\n0\r\n\r\n"
    for request in (get(path, *headers), post(path, b"abc", *headers), chunked):
        for dripping in (False, True):
            async with client(address) as wire:
                if dripping:
                    await wire.drip(request)
                else:
                    await wire.send(request + after)
                [response] = await wire.responses()
                assert (response.status, response.headers["connection"]) == (200, "close")
    assert app.served == [("GET", path, b"")] * 2 + [("POST", path, b"abc")] * 4
    assert app.closed == []


async def test_an_upgrade_takes_no_body_of_the_request_that_follows(app: App, address: str):
    second = post("/v1/smuggled", b"smuggled")
    for body in (b"", b"abc"):
        async with client(address) as wire:
            await wire.send(post("/v1/x", body, "connection: Upgrade", "upgrade: h2c") + second)
            [response] = await wire.responses()
            assert response.status == 200
    assert app.served == [("POST", "/v1/x", b""), ("POST", "/v1/x", b"abc")]


async def test_an_error_after_a_request_does_not_become_its_answer(app: App, wire: Client):
    await wire.send(get("/v1/slow") + b"rubbish\r\n\r\n")
    await until(lambda: app.closed == ["invalid_http"])
    app.release.set()
    answer = await wire.rest()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_an_error_in_a_body_ends_its_request(app: App, wire: Client):
    await wire.send(get("/v1/x", "transfer-encoding: chunked", method="POST") + b"3\r\nabc\r\nrubbish\r\n")
    [response] = await wire.responses()
    assert (response.status, response.code) == (400, "invalid_http")
    assert app.lost == app.failed == ["/v1/x"]  # in the words of that path's API
    assert app.served == []


async def test_a_defect_closes_the_connection_without_an_answer(app: App, wire: Client, caplog):
    await wire.send(get("/v1/defect"))
    assert await wire.rest() == b""
    assert "GET /v1/defect failed" in caplog.text


async def test_a_half_closed_connection_counts_as_lost(app: App, wire: Client):
    await wire.send(get("/v1/slow"))
    await until(lambda: app.served)
    wire.writer.write_eof()
    assert await wire.rest() == b""
    await until(lambda: app.connections.open == set())
    app.release.set()


async def test_shutting_down_answers_what_was_asked_and_closes_what_is_idle(app: App):
    async with serving(app) as address, client(address) as busy, client(address) as idle:
        await busy.send(get("/v1/a"))
        await busy.response()
        await busy.send(get("/v1/slow"))
        await idle.send(get("/v1/b"))
        await idle.response()
        await until(lambda: len(app.served) == 3)
        for connection in list(app.state.connections):
            connection.shutdown()
        assert await idle.rest() == b""
        app.release.set()
        [response] = await busy.responses()
        assert (response.status, response.headers["connection"]) == (200, "close")


async def test_an_early_refusal_keeps_the_connection(app: App, wire: Client):
    app.refusal = 503, b"content-length: 2\r\n\r\nno"
    for _ in range(3):
        await wire.send(post("/v1/x", b"x" * 100_000))
        assert ((await wire.response()).status) == 503
    await wire.send(post("/v1/x", b"abc", "connection: close"))  # not refused early
    assert [r.status for r in await wire.responses()] == [200]
    assert app.served == [("POST", "/v1/x", b"abc")]


async def test_a_slow_reader_stops_the_application(app: App, wire: Client):
    await wire.send(get("/v1/flood"))
    [connection] = await until(lambda: app.made)
    await until(lambda: connection.flow.write_paused)
    written = connection.written
    await asyncio.sleep(0.1)
    assert connection.written == written

    async def goes_on() -> bool:
        await wire.reader.read(1_000_000)  # as often as the buffers of the two sockets need
        return connection.written > written

    await until(goes_on)


# -- addresses and sockets


async def test_ipv6_and_unix_sockets(app: App, tmp_path: Path):
    loop = asyncio.get_running_loop()
    path = str(tmp_path / "socket")
    servers = [await loop.create_unix_server(app.connect, path)]
    connect = [asyncio.open_unix_connection(path)]
    if socket.has_ipv6:
        servers.append(await loop.create_server(app.connect, "::1", 0))
        connect.append(asyncio.open_connection("::1", servers[-1].sockets[0].getsockname()[1]))
    for connecting in connect:
        reader, writer = await connecting
        await Client(reader, writer).send(get("/v1/x", "connection: close"))
        assert [r.status for r in await Client(reader, writer).responses()] == [200]
        writer.close()
    assert [made.address for made in app.made] == ["", "::1"][: len(connect)]
    for server in servers:
        server.close()


async def test_tls(app: App, tmp_path: Path):
    ca = Authority.at(tmp_path)
    files = ca.issue("server")
    serve = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serve.load_cert_chain(files.cert, files.key)
    trust = ssl.create_default_context(cafile=str(ca.file))
    async with serving(app, ssl=serve) as address, client(address, ssl=trust) as wire:
        await wire.send(post("/v1/x", b"x" * 300_000))
        assert (await wire.response()).status == 200
        await wire.send(get("/v1/stream", "connection: close"))
        assert (await wire.rest()).endswith(b"0\r\n\r\n")
        async with client(address, ssl=trust) as other:
            await other.send(b"rubbish\r\n\r\n")
            assert [r.status for r in await other.responses()] == [400]


# -- sizes


def limited(**limits: Any) -> App:
    return App(replace(connection_limits(Settings()), **limits))


@pytest.mark.parametrize(
    "sent",
    [
        get("/v1/x", "x: " + "y" * 3000),
        get("/v1/x", "y" * 3000 + ": x"),
        get("/v1/" + "x" * 3000),
        get("/v1/x", *(f"x{i}: y" for i in range(10))),
        b"GET /v1/" + b"x" * 100_000,
        b"GET /v1/x HTTP/1.1\r\nx: " + b"y" * 100_000,
        b"\r\n" * 50_000,
    ],
    ids=["a value", "a name", "a target", "many", "an endless target", "an endless value", "empty lines"],
)
async def test_large_headers_are_refused(sent: bytes):
    app = limited(header_bytes=2048, headers=10)
    async with serving(app) as address:
        for dripping in (False, True) if len(sent) < 5000 else (False,):
            async with client(address) as wire:
                await (wire.drip if dripping else wire.send)(sent)
                found = [(r.status, r.code) for r in await wire.responses()]
                assert found == [(431, "headers_too_large")]
    assert set(app.closed) == {"headers_too_large"}
    assert app.served == []


async def test_headers_just_below_the_limits_are_served():
    app = limited(header_bytes=2048, headers=10)
    async with serving(app) as address, client(address) as wire:
        await wire.send(get("/v1/x", *(f"x{i}: y" for i in range(9))) + get("/v1/x", "x: " + "y" * 2000))
        assert [(await wire.response()).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("endless", [b"3;" + b"x" * 100_000, b"0\r\n" + b"x: y\r\n" * 20_000, b"0" * 100_000])
async def test_endless_chunk_headers_and_trailers_are_refused(endless: bytes):
    app = limited(header_bytes=2048)
    async with serving(app) as address, client(address) as wire:
        await wire.send(get("/v1/x", "transfer-encoding: chunked", method="POST"))
        await until(lambda: app.tickets)
        await wire.send(endless)
        assert [(r.status, r.code) for r in await wire.responses()] == [(400, "invalid_http")]
    assert app.closed == ["invalid_http"]


async def test_the_largest_unfinished_head_goes_when_there_is_no_room():
    app = limited(header_bytes=8192)
    app.connections.heads = UnfinishedHeads(4096, 4096)
    async with serving(app) as address, client(address) as large, client(address) as small:
        await large.send(b"GET /v1/x HTTP/1.1\r\nhost: x\r\npadding: " + b"x" * 3000)
        await until(lambda: app.connections.heads._held)
        await small.send(b"GET /v1/x HTTP/1.1\r\nhost: x\r\npadding: " + b"x" * 2000)
        [refused] = await large.responses()
        assert (refused.status, refused.code) == (503, "too_many_connections")
        await small.send(b"\r\n\r\n")
        assert (await small.response()).status == 200
        assert not app.connections.heads._held
    assert app.closed == ["heads"]
