"""Hundreds of megabytes without a key, or with one: the gateway's memory stays where it is, and it goes on
answering."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from urllib.parse import urlsplit

from tests.integration.test_cli import KEY, Served, serving
from tests.integration.test_upload_memory import peak
from tests.support.waiting import PATIENCE_S

SIZE = 160 * 1024**2
GROWTH = SIZE // 2
"""Bytes of memory, for what came in eight bodies of SIZE. Thread stacks, buffers and libraries that are needed only now
are a few MiB, and more on a busy machine; a body that is kept is twice as much."""


def flood(served: Served, path: str, key: str, *, chunked: bool) -> int | None:
    """Send the body until the gateway closes. Returns the status that it answered; None: it cannot be read."""
    parts = urlsplit(served.url)
    length = "transfer-encoding: chunked" if chunked else f"content-length: {SIZE}"
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{authorization}{length}\r\n\r\n"
    piece = b"{}," * 21_845
    piece = b"%x\r\n" % len(piece) + piece + b"\r\n" if chunked else piece
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode())
        answer, sent = b"", 0
        connection.settimeout(0.002)
        try:
            while sent < SIZE and b"\r\n\r\n" not in answer:
                with contextlib.suppress(TimeoutError):
                    sent += connection.send(piece)
                with contextlib.suppress(TimeoutError):
                    answer += connection.recv(65_536)
            connection.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                while sent < SIZE:
                    sent += connection.send(piece)
            while got := connection.recv(65_536):
                answer += got
        except ConnectionError:
            pass
    return int(answer.split()[1]) if answer else None


@contextlib.contextmanager
def healthy(served: Served):
    """Asks `/healthz` all the while."""
    parts = urlsplit(served.url)
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.01):
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()


def test_floods_of_refused_requests_do_not_grow_memory(tmp_path):
    with serving(tmp_path / "state") as served:
        pid = str(served.process.pid)
        served.call(
            "POST", "/admin/v1/tenants", {"name": "acme"}
        )  # what is imported and opened once is there now
        assert flood(served, "/admin/v1/tenants", "", chunked=False) == 401
        before = peak(pid)
        with healthy(served):
            for path in ("/admin/v1/tenants", "/admin/v1/apply", "/finance/v1/periods/2026-01/close"):
                for chunked in (False, True):
                    assert flood(served, path, "", chunked=chunked) == 401
            for chunked in (False, True):
                assert flood(served, "/admin/v1/tenants", KEY, chunked=chunked) == 413
        assert peak(pid) - before < GROWTH, f"{(peak(pid) - before) >> 20} MiB"
        assert [tenant["name"] for tenant in served.call("GET", "/admin/v1/tenants")["data"]] == ["acme"]
