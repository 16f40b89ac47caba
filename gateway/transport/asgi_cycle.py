"""Requests to the admin and finance API: ASGI, with uvicorn's own request/response cycle."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

_READ_AHEAD: Final = 64 * 1024
"""Bytes of the body that may wait to be read."""


class Sender(Protocol):
    """The part of a transport that the cycle uses. `ClientConnection` counts what is written."""

    flow: FlowControl

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool: ...


class AsgiCycle(RequestResponseCycle):
    """uvicorn's request/response cycle, with what `ClientConnection` asks of both kinds of requests."""

    received = 0
    more = True
    _until_close = False

    async def send(self, message: Any) -> None:
        """HTTP/1.0 has no chunks: a body without a length ends with the connection. A header of the response
        goes before the default of that name."""
        if self.waiting_for_100_continue and self.more:
            self.keep_alive = False  # the client may or may not send the body
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self.default_headers = [header for header in self.default_headers if header[0] not in names]
            self._until_close = self.scope["http_version"] == "1.0" and b"content-length" not in names
            if self._until_close:
                self.chunked_encoding, self.expected_content_length = False, sys.maxsize
        elif self._until_close and not message.get("more_body"):
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)

    def body_received(self, part: bytes) -> None:
        self.received += len(part)
        if self.response_complete:
            return
        self.waiting_for_100_continue = False
        self.body += part
        if len(self.body) > _READ_AHEAD:
            self.flow.pause_reading()
        self.message_event.set()

    def body_complete(self) -> None:
        self.more = self.more_body = False
        self.message_event.set()

    def lost(self) -> None:
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()


def asgi_cycle(
    request: dict[str, Any],
    transport: asyncio.Transport,
    *,
    sender: Sender,
    server: ServerState,
    expects_continue: bool,
    keep_alive: bool,
    on_response: Callable[[], None],
) -> AsgiCycle:
    """The cycle of one request. `request`: the part of its ASGI scope that differs between requests of a
    connection."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "https" if is_ssl(transport) else "http",
        "root_path": "",
        **request,
    }
    return AsgiCycle(
        scope=cast("Any", scope),
        transport=cast("asyncio.Transport", sender),
        flow=sender.flow,
        logger=logging.getLogger("uvicorn.error"),
        access_logger=logging.getLogger("uvicorn.access"),
        access_log=False,
        default_headers=server.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=expects_continue,
        keep_alive=keep_alive,
        on_response=on_response,
    )
