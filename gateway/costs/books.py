"""Where the sums are made: a process beside the worker, so that adding up a month delays no request.

It starts with the first question, opens the ledger itself, runs one question at a time, and ends with the
worker, however that ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Concatenate, ParamSpec, TypeVar

from gateway.metering.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")


class Books:
    """One per worker."""

    def __init__(self, ledger_url: str) -> None:
        self._url = ledger_url
        # Mutable: the process, once there is one.
        self._pool: ProcessPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<Books {'open' if self._pool else 'not opened'}>"

    async def run(
        self, function: Callable[Concatenate[Ledger, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`function(ledger, *args, **kwargs)` in the process. It must be a module's own function, and what
        goes in and comes out must be plain data. Raises what it raises. A process that died (killed, out of
        memory) is replaced once."""
        call = partial(_call, function, args, kwargs)
        try:
            return await self._submit(call)
        except BrokenProcessPool:
            self._pool = None
            return await self._submit(call)

    async def _submit(self, call: Callable[[], R]) -> R:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                max_workers=1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_open,
                initargs=(self._url,),
            )
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def close(self) -> None:
        """What runs is finished first."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)


_ledger: Ledger | None = None
"""The process's own."""


def _open(url: str) -> None:
    global _ledger  # noqa: PLW0603  # a process pool's initializer has no other place
    # Ctrl-C in a terminal goes to the whole group; the worker says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ledger = Ledger(url)


def _call(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    assert _ledger is not None
    return function(_ledger, *args, **kwargs)


def _end_with_parent() -> None:
    """A pool's processes outlive a parent that was killed, waiting for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
