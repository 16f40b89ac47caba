"""Connections come as fast as the event loop's pace asks for, and what goes wrong with one stays with it."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from functools import wraps

import trustme
import uvloop

from gateway.serving import acceptor
from gateway.serving.acceptor import SECONDS_EACH, Acceptor
from tests.support.waiting import until


def served(test):
    """By the event loop that the gateway has, whose transports differ from asyncio's own."""
    return wraps(test)(lambda *args, **kwargs: uvloop.run(test(*args, **kwargs)))


class Hello(asyncio.Protocol):
    made: list[asyncio.BaseTransport]

    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport) -> None:
        self._made.append(transport)
        transport.write(b"hello")
        transport.close()


def clients(listener: socket.socket, number: int) -> list[socket.socket]:
    return [socket.create_connection(listener.getsockname()) for _ in range(number)]


async def heard(client: socket.socket) -> bytes:
    return await asyncio.to_thread(client.recv, 100)


@served
async def test_every_client_is_served(listener):
    made = []
    server = Acceptor(listener, lambda: Hello(made))
    for client in clients(listener, 20):
        with client:
            assert await heard(client) == b"hello"
    server.close()
    server.close()
    await server.wait_closed()
    assert len(made) == 20


@served
async def test_after_a_long_round_many_are_taken_at_once(listener):
    made = []
    server = Acceptor(listener, lambda: Hello(made))
    await asyncio.sleep(0.01)
    waiting = clients(listener, 30)
    end = time.thread_time() + 40 * SECONDS_EACH
    while time.thread_time() < end:
        pass
    server._accept()
    assert len(server._tasks) == 30
    waiting += clients(listener, 3)
    before = len(server._tasks)
    server._worked = time.thread_time()
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
    server = Acceptor(Exhausted(), lambda: Hello(made))
    [client] = clients(listener, 1)
    with client:
        assert await heard(client) == b"hello"
    assert [r.getMessage() for r in caplog.records] == [
        "Cannot accept connections: Too many open files; retrying in 0.05 s"
    ] * 2
    server.close()


@served
async def test_who_speaks_no_tls_hurts_nobody(listener):
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    made = []
    server = Acceptor(listener, lambda: Hello(made), tls=tls)
    rude, silent = clients(listener, 2)
    with rude, silent:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting)
        assert await reader.read() == b"hello"
        writer.close()
        rude.settimeout(10)
        while await heard(rude):
            pass
    await until(lambda: not server._tasks)
    server.close()
