"""Connections come as fast as the event loop's pace asks for, and what goes wrong with one stays with it."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace

import pytest
import trustme
import uvloop

from gateway.config import Settings
from gateway.observability.shared_values import SharedValues
from gateway.serving import acceptor
from gateway.serving.acceptor import SECONDS_EACH, SEND_BUFFER, Acceptor, Peers, is_ahead
from gateway.transport.client_connection import unread
from gateway.transport.connection_limits import Connections, connection_limits
from tests.support.waiting import PATIENCE_S, until


def served(test):
    """By the event loop that the gateway has, whose transports differ from asyncio's own."""
    return wraps(test)(lambda *args, **kwargs: uvloop.run(test(*args, **kwargs)))


def connections(**settings: object) -> Connections:
    return Connections(connection_limits(Settings(**settings)))


def tls_pair() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


class Hello(asyncio.Protocol):
    made: list[asyncio.BaseTransport]

    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport) -> None:
        self._made.append(transport)
        transport.write(b"hello")
        transport.close()


def clients(listener: socket.socket, number: int) -> list[socket.socket]:
    return [socket.create_connection(listener.getsockname(), timeout=PATIENCE_S) for _ in range(number)]


async def heard(client: socket.socket) -> bytes:
    return await asyncio.to_thread(client.recv, 100)


@served
async def test_every_client_is_served(listener):
    made = []
    server = Acceptor(listener, lambda: Hello(made), connections())
    for client in clients(listener, 20):
        with client:
            assert await heard(client) == b"hello"
    server.close()
    server.close()
    await server.wait_closed()
    assert len(made) == 20


class Processor:
    """The acceptor's clock: the time for which its thread has worked."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(acceptor, "time", SimpleNamespace(thread_time=lambda: self.now))


@served
async def test_after_a_long_round_many_are_taken_at_once(listener, monkeypatch):
    made, processor = [], Processor(monkeypatch)
    server = Acceptor(listener, lambda: Hello(made), connections())
    await asyncio.sleep(0.01)
    waiting = clients(listener, 30)
    processor.now += 40 * SECONDS_EACH
    server._accept()
    assert len(server._tasks) == 30
    waiting += clients(listener, 3)
    before = len(server._tasks)
    server._accept()  # nothing was done meanwhile
    assert len(server._tasks) == before + 1
    await until(lambda: len(made) == 33)
    server.close()
    for client in waiting:
        client.close()


@served
async def test_when_files_run_out_it_pauses_and_goes_on(listener, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "_PAUSE", 0.05)

    class Exhausted:
        tries = 0

        def __getattr__(self, name):
            return getattr(listener, name)

        def accept(self):
            self.tries += 1
            if self.tries <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

    made = []
    server = Acceptor(Exhausted(), lambda: Hello(made), connections())
    [client] = clients(listener, 1)
    with client:
        assert await heard(client) == b"hello"
    assert [r.getMessage() for r in caplog.records] == [
        "Cannot accept connections: Too many open files; retrying in 0.05 s"
    ] * 2
    server.close()


@served
async def test_client_without_tls_affects_no_other(listener):
    tls, trusting = tls_pair()
    made = []
    server = Acceptor(listener, lambda: Hello(made), connections(), tls=tls)
    rude, silent = clients(listener, 2)
    with rude, silent:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
        assert await reader.read() == b"hello"
        writer.close()
        while await heard(rude):
            pass
    await until(lambda: not server._tasks)
    server.close()


@served
async def test_what_waits_when_the_port_closes_is_still_served(listener):
    made = []
    server = Acceptor(listener, lambda: Hello(made), connections())
    waiting = clients(listener, 20)
    server.close()
    listener.close()
    await server.wait_closed()
    for client in waiting:
        with client:
            assert await heard(client) == b"hello"


@served
async def test_connections_count_from_the_handshake_on(listener, monkeypatch):
    processor = Processor(monkeypatch)
    tls, trusting = tls_pair()
    closed: list[str] = []
    counted = connections(max_connections_per_address=2, header_timeout=0.2)
    counted.on_close = closed.append
    server = Acceptor(listener, lambda: Hello([]), counted, tls=tls)
    silent = clients(listener, 3)
    processor.now += 1
    server._accept()  # all at once: no handshake has timed out when the last one comes
    assert closed == ["too_many_from_address"]
    assert await heard(silent[2]) == b""
    await until(lambda: not server._tasks)  # the handshakes had their time
    counted.limits = replace(counted.limits, header_timeout=PATIENCE_S)
    reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
    assert await reader.read() == b"hello"
    writer.close()
    for client in silent:
        client.close()
    server.close()
    await server.wait_closed()
    assert not counted._setting_up
    assert counted._arriving == 0


# -- Several workers


@pytest.mark.parametrize(
    ("mine", "fewest", "ahead"),
    [(0, 0, False), (1, 0, False), (2, 0, True), (10, 9, False), (11, 9, True), (1060, 1000, False), (1070, 1000, True)],
)  # fmt: skip
def test_is_ahead(mine, fewest, ahead):
    assert is_ahead(mine, fewest) is ahead


def test_workers_that_do_not_accept_do_not_count():
    values = SharedValues.create(3)
    one, two, other = (Peers(SharedValues(values.file), slot) for slot in (1, 2, 3))
    one.publish(50)
    assert not one.ahead()
    two.publish(2)
    assert one.ahead()
    assert not two.ahead()
    values.mark_dead(2)
    assert not one.ahead()
    other.publish(0)
    assert one.ahead()
    other.publish(None)
    assert not one.ahead()
    values.close()


class Held(asyncio.Protocol):
    """Stays open, and tells its connections when it is lost."""

    mark = None

    def __init__(self, counted: Connections) -> None:
        self._counted = counted
        self.address = ""

    def connection_made(self, _transport) -> None:
        assert self._counted.admit(self)

    def connection_lost(self, _exc) -> None:
        self._counted.forget(self)


@served
async def test_a_burst_is_spread_and_a_stopped_worker_holds_up_nobody(listener):
    values, counted = SharedValues.create(2), [connections(), connections()]
    sockets = [listener.dup(), listener.dup()]  # an event loop watches a descriptor once
    one, two = (
        Acceptor(sockets[n], lambda c=counted[n]: Held(c), counted[n], peers=Peers(values, n + 1))
        for n in (0, 1)
    )
    held = clients(listener, 30)
    await until(lambda: sum(len(c.open) for c in counted) == 30)
    assert abs(len(counted[0].open) - len(counted[1].open)) <= 4
    for client in held:
        client.close()
    await until(lambda: not any(c.open for c in counted))
    asyncio.get_running_loop().remove_reader(sockets[1].fileno())  # the second is stopped
    held = clients(listener, 30)
    await until(lambda: len(counted[0].open) == 30)
    for client in held:
        client.close()
    one.close()
    two.close()
    assert values.fewest_connections() is None
    for shared in sockets:
        shared.close()
    values.close()


@served
async def test_the_kernel_keeps_little_of_what_a_client_does_not_read():
    made: list[asyncio.Transport] = []

    class Flood(asyncio.Protocol):
        def connection_made(self, transport) -> None:
            made.append(transport)
            transport.write(bytes(32 * 1024 * 1024))

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = Acceptor(listener, Flood, connections(write_timeout=7))
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(listener.getsockname())
    try:
        await until(lambda: made and unread(made[0]) >= 64 * 1024)
        assert unread(made[0]) <= 2 * SEND_BUFFER
        accepted = made[0].get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
    finally:
        made[0].abort()
        reader.close()
        server.close()
        listener.close()
        await server.wait_closed()
    await until(lambda: unread(made[0]) == 0)
