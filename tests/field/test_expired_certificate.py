"""The gateway's certificate has expired.

Source: a day of operations
Sent: any command to a gateway whose certificate expired a day ago
Right: it says that the certificate expired, when, and where it is renewed; not that another CA helps
Why: "Set FLORIN_CA_FILE" sent the operator after a CA that was right, while every client failed
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from adapters.security.tls import read_pair, server_context
from tests.support.certificates import Authority
from tests.support.commands import command


@contextlib.contextmanager
def server(context: ssl.SSLContext) -> Iterator[str]:
    """Its URL; it answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


async def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, days: float, trusted: bool = True) -> str:
    authority = Authority.at(tmp_path / "pki")
    files = authority.issue("gateway", days=days)
    others = Authority.at(tmp_path / "others")
    monkeypatch.setenv("FLORIN_CA_FILE", str(authority.file if trusted else others.file))
    with server(server_context(read_pair(files.cert, files.key), None)) as url:
        done = await command(url, "whoami")
    assert done.exit_code == 3
    return " ".join(done.stderr.split())


async def test_who_meets_an_expired_certificate_is_told_so(tmp_path, monkeypatch):
    text = await said(tmp_path, monkeypatch, days=-1)
    expired = datetime.now(UTC) - timedelta(days=1)
    when = re.search(r"its certificate has expired on (\d{4}-\d\d-\d\d \d\d:\d\d) UTC\.", text)
    assert when, text
    assert abs(datetime.fromisoformat(f"{when[1]}+00:00") - expired) < timedelta(minutes=10)
    assert "FLORIN_TLS_CERT" in text
    assert "FLORIN_CA_FILE" not in text


async def test_who_does_not_trust_the_ca_is_told_that(tmp_path, monkeypatch):
    text = await said(tmp_path, monkeypatch, days=1, trusted=False)
    assert "FLORIN_CA_FILE" in text
    assert "expired" not in text
