"""Detects client disconnects by asking the kernel.

The event loop reads a request in one iteration and the end of its connection in a later one. A worker that
was stopped, just started, or is busy may therefore read requests whose clients have long disconnected.

A client that closes only its sending side (`shutdown(SHUT_WR)`) counts as disconnected: the server closes the
connection then. No OpenAI client and no proxy does that.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

GONE: Final = "florin.gone"
"""Scope key of a function that returns whether the client has disconnected. It takes about a microsecond."""

_ENDED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def disconnect_check(transport: asyncio.Transport) -> Callable[[], bool]:
    """A function that returns whether the peer of `transport` has disconnected."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _ENDED)

    def gone() -> bool:
        # The file descriptor of a closing transport may already belong to another connection.
        return transport.is_closing() or bool(poll.poll(0))

    return gone
