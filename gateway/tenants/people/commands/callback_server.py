"""Waits on this machine for the browser that comes back from the issuer with a code (RFC 8252)."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gateway.commands.client import UsageError
from gateway.tenants.people.commands.issuer_client import IssuerRefusalError

PATH: Final = "/callback"
_DONE: Final = (
    b"<!doctype html><meta charset=utf-8><title>Florin</title>"
    b"<p>Go back to the terminal: it says whether you are signed in. You can close this page.\n"
)


class Callback:
    """Mutable: the code, once it has come."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._answer: dict[str, str] | None = None
        self.state = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{PATH}"

    def wait(self, issuer: str, seconds: float) -> str:
        """The code. Raises IssuerRefusalError, UsageError if it does not come in time."""
        until = time.monotonic() + seconds
        while self._answer is None:
            self._server.timeout = max(0.05, min(1.0, until - time.monotonic()))
            self._server.handle_request()
            if self._answer is None and time.monotonic() >= until:
                raise UsageError(f"No one signed in within {seconds:.0f} s.")
        answer = self._answer
        if answer.get("iss", issuer) != issuer:  # RFC 9207: another issuer's answer
            raise IssuerRefusalError("", "The answer came from another issuer.")
        if "code" not in answer:
            reason = answer.get("error_description") or answer.get("error") or "no code"
            raise IssuerRefusalError(answer.get("error", ""), f"The issuer refused: {reason[:300]}")
        return answer["code"]

    def take(self, query: str) -> bool:
        """Whether this is the answer to our request: anything on the machine can ask this server."""
        parameters = {name: values[0] for name, values in parse_qs(query, max_num_fields=20).items()}
        if self._answer is not None or not hmac.compare_digest(
            parameters.get("state", "").encode(), self.state.encode()
        ):
            return False
        self._answer = parameters
        return True


@contextmanager
def listening(port: int) -> Iterator[Callback]:
    """Raises UsageError if the port is in use."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 1
        """Seconds. Browsers open connections that they do not use."""

        def do_GET(self) -> None:  # the name that http.server calls
            url = urlsplit(self.path)
            taken = url.path == PATH and callback.take(url.query)
            self.send_response(200 if taken else 404)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(_DONE) if taken else 0))
            self.send_header("cache-control", "no-store")
            self.send_header("referrer-policy", "no-referrer")
            self.end_headers()
            if taken:
                self.wfile.write(_DONE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
            """The URL has the code."""

    try:
        server = HTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"Port {port} cannot be used: {error.strerror}.") from error
    with server:
        callback = Callback(server)
        yield callback
