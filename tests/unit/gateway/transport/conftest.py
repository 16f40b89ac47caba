from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop, as in production, and asyncio, as in the integration tests."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
