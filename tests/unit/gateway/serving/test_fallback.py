"""Over real sockets: the parent's answers, with and without TLS."""

from __future__ import annotations

import socket
import ssl
import threading
import time

import httpx2
import pytest

from adapters.security.tls import read_pair, server_context
from gateway.config import SettingsError
from gateway.serving import fallback
from gateway.serving.fallback import PATIENCE, FallbackApp
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def _clients_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_SECONDS", 600)


def url(listener: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/v1/models"


def test_it_begins_after_a_while_without_a_worker_and_ends_with_the_first(listener):
    made = FallbackApp([listener], lambda: None)
    try:
        made.update(100.0, serving=True)
        made.update(100.0 + PATIENCE, serving=False)
        assert "not needed" in repr(made)
        made.update(100.1 + PATIENCE, serving=False)
        made.update(101.0 + PATIENCE, serving=False)
        assert "answering" in repr(made)
        for _ in range(2):
            answer = httpx2.get(url(listener), timeout=PATIENCE_S)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
            assert answer.headers["retry-after"] == "5"
        made.update(102.0 + PATIENCE, serving=True)
        assert "not needed" in repr(made)
        with pytest.raises(httpx2.ReadTimeout):  # the listener is the workers' again, and still open
            httpx2.get(url(listener), timeout=0.2)
        made.update(200.0, serving=False)  # and once more
        assert httpx2.get(url(listener), timeout=PATIENCE_S).status_code == 503
    finally:
        made.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "florin-stand-in"]


def test_garbage_and_silent_clients_delay_no_other(listener, monkeypatch):
    made = FallbackApp([listener], lambda: None)
    address = listener.getsockname()
    try:
        made.update(time.monotonic() + 2 * PATIENCE, serving=False)
        with (
            socket.create_connection(address, timeout=PATIENCE_S),
            socket.create_connection(address, timeout=PATIENCE_S) as rubbish,
        ):
            rubbish.sendall(bytes(200_000))
            assert httpx2.get(url(listener), timeout=PATIENCE_S).status_code == 503
        monkeypatch.setattr(fallback, "_SECONDS", 0.1)
        with socket.create_connection(address, timeout=PATIENCE_S) as silent:
            assert silent.recv(1) == b"", "closed after a while"
    finally:
        made.stop()


def test_with_tls(listener, tmp_path):
    authority = Authority.at(tmp_path)
    files = authority.issue("server")
    made = FallbackApp([listener], lambda: server_context(read_pair(files.cert, files.key), None))
    try:
        made.update(time.monotonic() + 2 * PATIENCE, serving=False)
        trusted = ssl.create_default_context(cafile=str(authority.file))
        answer = httpx2.get(url(listener, "https"), timeout=PATIENCE_S, verify=trusted)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
    finally:
        made.stop()


def test_a_certificate_that_cannot_be_used_closes_connections_at_once(listener, caplog):
    def broken():
        raise SettingsError("FLORIN_TLS_CERT: no certificate.")

    made = FallbackApp([listener], broken)
    try:
        made.update(time.monotonic() + 2 * PATIENCE, serving=False)
        with pytest.raises(httpx2.TransportError):
            httpx2.get(url(listener, "https"), timeout=PATIENCE_S)
        assert "FLORIN_TLS_CERT" in caplog.text
    finally:
        made.stop()
