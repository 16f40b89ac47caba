"""Whether the client of a request has hung up, as the kernel knows it now.

The event loop reads a request first and the end of its connection in a later round. Where it comes late (the
worker was stopped, or new, or busy) it finds requests whose clients went long ago, and nothing that it has
read says so.

A client that closes only its sending side (`shutdown(SHUT_WR)`) has hung up as well: the server has always
closed its connection then. None of the OpenAI clients does that, nor do proxies.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

GONE: Final = "florin.gone"
"""Key of the scope: a function that tells, in a microsecond."""

_ENDED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def look(transport: asyncio.Transport) -> Callable[[], bool]:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _ENDED)

    def gone() -> bool:
        # A transport that closes may have given its number back already, to another connection.
        return transport.is_closing() or bool(poll.poll(0))

    return gone
