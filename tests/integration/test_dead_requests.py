"""Clients that hang up while nobody reads: their requests lie in the kernel, and are read later all the same."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import psutil
import pytest

from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import KEY, Served, serving, workers
from tests.support.waiting import until_now

DEAD = 60


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, MockProcess, str]]:
    with (
        MockProcess() as engine,
        serving(tmp_path_factory.mktemp("gateway") / "state", FLORIN_WORKERS="2") as gateway,
    ):
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx2.Client(base_url=f"{gateway.url}/admin/v1", headers=headers, timeout=60) as admin:
            fields = {"base": "base", "gpu_type": "H100", "slots": 2, "max_rank": 8}
            for path, body in (
                ("tenants", {"name": "acme", "base_access": True}),
                ("engines", {"name": "a1", "url": engine.url, **fields}),
                ("keys", {"tenant": "acme"}),
            ):
                answer = admin.post(path, json=body)
                assert answer.is_success, answer.text
        key = answer.json()["key"]
        yield gateway, engine, key


def request(key: str, words: str) -> bytes:
    body = json.dumps({"model": "base", "messages": [{"role": "user", "content": words}]}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: florin\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(gateway: Served) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answered(connection: socket.socket) -> int:
    """The status; 0 when the connection ends without an answer."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
        answer.read()
    except http.client.RemoteDisconnected:
        return 0
    return answer.status


def usage(gateway: Served) -> list[dict]:
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx2.get(f"{gateway.url}/finance/v1/usage", headers=headers, timeout=60)
    return answer.raise_for_status().json()["data"]


@contextmanager
def stopped(gateway: Served) -> Iterator[None]:
    """Its workers do nothing meanwhile; the kernel goes on taking connections and bytes for them."""
    crew = workers(psutil.Process(gateway.process.pid))
    assert len(crew) == 2
    for worker in crew:
        worker.send_signal(signal.SIGSTOP)
    try:
        until_now(lambda: all(worker.status() == psutil.STATUS_STOPPED for worker in crew))
        yield
    finally:
        for worker in crew:
            worker.send_signal(signal.SIGCONT)


def test_no_engine_gets_a_request_whose_client_disconnected(installation):
    gateway, engine, key = installation
    with ExitStack() as stack:
        used = [stack.enter_context(connect(gateway)) for _ in range(8)]
        for connection in used:  # these have been accepted, and served once
            connection.sendall(request(key, "before"))
            assert answered(connection) == 200
        calls = len(engine.log()["calls"])
        with stopped(gateway):
            for connection in used[:4]:
                connection.sendall(request(key, "gone"))
                connection.close()
            for number in range(DEAD):
                gone = connect(gateway)
                gone.sendall(request(key, "gone"))
                if number % 3 == 0:  # a reset, not an end
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                gone.close()
            alive = [*used[4:], *(stack.enter_context(connect(gateway)) for _ in range(8))]
            for connection in alive:
                connection.sendall(request(key, "alive"))
        assert [answered(connection) for connection in alive] == [200] * len(alive)
    heard = [call["body"]["messages"][0]["content"] for call in engine.log()["calls"][calls:]]
    assert heard == ["alive"] * len(alive)
    served = len(used) + len(alive)
    until_now(lambda: len(usage(gateway)) >= served)  # each worker ships its own records
    assert [(row["outcome"], row["billable"]) for row in usage(gateway)] == [("ok", True)] * served
    assert "Error" not in gateway.errors.read_text()
    assert "without" not in gateway.errors.read_text(), "the server took it for a defect"


def test_half_closed_connection_counts_as_disconnected(installation):
    """As it has always been: the server closes then. So no engine works for it, and nothing is billed."""
    gateway, engine, key = installation
    calls = len(engine.log()["calls"])
    with connect(gateway) as connection:
        with stopped(gateway):
            connection.sendall(request(key, "half"))
            connection.shutdown(socket.SHUT_WR)
        assert answered(connection) == 0
    assert len(engine.log()["calls"]) == calls
