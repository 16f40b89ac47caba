"""A web server over real sockets whose every answer a test writes by hand, so that it may misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

REASONS = {200: "OK", 206: "Partial Content", 302: "Found", 404: "Not Found", 503: "Unavailable"}


@dataclass
class Request:
    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """Names in lower case."""
    count: int
    """How many for this path came before."""
    connection: socket.socket
    stopping: threading.Event

    @property
    def start(self) -> int:
        """Of the range that is asked for."""
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.sendall(part)

    def head(self, status: int = 200, **headers: object) -> None:
        """`content_length=3` becomes `content-length: 3`."""
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'x')}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    def answer(self, body: bytes = b"", status: int = 200, **headers: object) -> None:
        self.head(status, content_length=len(body), **headers)
        self.send(body)

    def ranged(self, body: bytes, *, until: int | None = None, **headers: object) -> None:
        """As an honest server does, but that it breaks off at the byte `until`."""
        start = self.start
        if start and self.headers.get("if-range") == headers.get("etag"):
            span = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.head(206, content_length=len(body) - start, content_range=span, **headers)
        else:
            start = 0
            self.head(200, content_length=len(body), **headers)
        self.send(body[start:until])

    def stall(self, seconds: float = 30.0) -> None:
        """Says nothing, until the client or the test gives up."""
        self.connection.settimeout(0.05)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(1):
                    return


Handler = Callable[[Request], None]


@dataclass
class HostileServer:
    """Answers each connection's one request by the handler of its path (without the query)."""

    handlers: dict[str, Handler] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    host: str = "127.0.0.1"
    wrap: Callable[[socket.socket], socket.socket] = field(default=lambda plain: plain)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._socket = socket.create_server((self.host, 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def counted(self, path: str) -> int:
        return sum(request.path.partition("?")[0] == path for request in self.requests)

    def close(self) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in list(self._threads):
            thread.join(10)

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(self.wrap(plain)) as connection:
            connection.settimeout(10)
            head = b""
            while b"\r\n\r\n" not in head:
                more = connection.recv(65536)
                if not more:
                    return
                head += more
            first, *lines = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
            bare = path.partition("?")[0]
            request = Request(method, path, headers, self.counted(bare), connection, self.stopping)
            self.requests.append(request)
            self.handlers.get(bare, lambda r: r.answer(status=404))(request)
        with contextlib.suppress(OSError):
            plain.close()


@contextlib.contextmanager
def hostile_server(handlers: dict[str, Handler] | None = None, **more) -> Iterator[HostileServer]:
    server = HostileServer(handlers if handlers is not None else {}, **more)
    try:
        yield server
    finally:
        server.close()
