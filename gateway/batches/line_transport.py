"""A line of a batch as an `exchange.RequestTransport`: a request that this process sends to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_RETRY_AFTER = b"retry-after"


class LineTransport:
    """Gives the lifecycle a body, and keeps the answer. `leave` is what elsewhere a disconnect is."""

    def __init__(self, path: str, body: bytes) -> None:
        self.method = "POST"
        self.path = path
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = [(b"content-length", b"%d" % len(body))]
        self.first_headers: Mapping[bytes, bytes] = dict(self.headers)
        self.client = ""
        self.ticket: object = None
        self.sent: int | None = None
        self._request = body
        self._on_disconnect: Callable[[], object] | None = None
        self._gone = False
        # The answer:
        self.status = 0
        """0: none."""
        self.body = b""
        self.retry_after: float | None = None

    def leave(self) -> None:
        """Nobody wants the answer any more. Idempotent."""
        if not self._gone:
            self._gone = True
            if self._on_disconnect is not None:
                self._on_disconnect()

    @property
    def left(self) -> bool:
        return self._gone

    def arrived(self) -> bytes | None:
        body, self._request = self._request, b""
        return body

    async def read(self) -> tuple[bytes, bool] | None:
        return None  # `arrived` has given it all

    def gone(self) -> bool:
        return self._gone

    def watch(self, on_disconnect: Callable[[], object] | None) -> None:
        self._on_disconnect = on_disconnect
        if self._gone and on_disconnect is not None:
            on_disconnect()

    async def wait_for_disconnect(self) -> None:
        pass

    async def respond(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, linger: bool = False
    ) -> None:
        del linger
        self.status, self.body = status, body
        for name, value in headers:
            if name == _RETRY_AFTER and value.isdigit():
                self.retry_after = float(value)

    # Lines are never streamed: see `lines.read_line`.

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        raise NotImplementedError

    async def write(self, data: bytes) -> None:
        raise NotImplementedError

    def write_now(self, data: bytes) -> bool:
        return not data

    async def end(self, data: bytes = b"") -> None:
        raise NotImplementedError
