"""What the answers of a Redis that gives none mean."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from adapters.errors import StoreUnavailableError
from adapters.store.connection import unavailable


def test_a_connection_that_the_event_loop_has_closed():
    """uvloop's own error, which is no OSError: it comes when Redis resets a connection just before a command is
    written to it."""

    async def write_to_what_is_closed() -> None:
        server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.transport.abort()
        await asyncio.sleep(0.05)  # it is closed in a later turn of the loop
        try:
            with unavailable():
                writer.writelines([b"PING\r\n"])
        finally:
            server.close()

    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        uvloop.run(write_to_what_is_closed())


def test_other_defects_are_not_taken_for_it():
    with pytest.raises(RuntimeError, match="a defect"), unavailable():
        raise RuntimeError("a defect")
