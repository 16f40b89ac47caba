"""Where the sums are made: a process beside the worker, so that adding up a month delays no request.

It starts with the first question, opens the ledger itself, runs one question at a time, and ends with the
worker, however that ends.
"""

from __future__ import annotations

import asyncio
import gc
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

from gateway.metering.ledger.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")


class LedgerProcess:
    """One per worker."""

    def __init__(self, ledger_url: str, *, patience: float = 3.0) -> None:
        """`patience`: seconds that what runs at the end may take."""
        self._url = ledger_url
        self._patience = patience
        self._starting = asyncio.Lock()
        # Mutable: the process, once there is one.
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        self._beside: dict[str, LedgerProcess] = {}

    def __repr__(self) -> str:
        return f"<LedgerProcess {'open' if self._pool else 'not opened'}>"

    async def run(
        self, function: Callable[Concatenate[Ledger, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`function(ledger, *args, **kwargs)` in the process. It must be a module's own function, and what
        goes in and comes out must be plain data. Raises what it raises. Where the process dies (killed, out
        of memory), it is asked once more in another."""
        call = partial(_call, function, args, kwargs)
        loop = asyncio.get_running_loop()
        pool = await self._open()
        try:
            return await loop.run_in_executor(pool, call)
        except BrokenProcessPool:
            self._forget(pool)
            if self._closed:
                raise
        pool = await self._open()
        try:
            return await loop.run_in_executor(pool, call)
        except BrokenProcessPool:
            self._forget(pool)
            raise

    def aside(self) -> LedgerProcess:
        """A second process, for what takes minutes: questions need not wait behind it. It is closed with
        this one."""
        return self._other("aside")

    def for_tenants(self) -> LedgerProcess:
        """A third process, for what tenants ask: operators and analysts need not wait behind it. It is closed
        with this one."""
        return self._other("tenants")

    def _other(self, name: str) -> LedgerProcess:
        if name not in self._beside:
            self._beside[name] = LedgerProcess(self._url, patience=self._patience)
        return self._beside[name]

    async def close(self) -> None:
        """What runs may finish, for a while; then it is cut off: what it had not committed is undone."""
        self._closed = True
        await asyncio.gather(*(other.close() for other in self._beside.values()))
        pool, self._pool = self._pool, None
        if pool is None:
            return
        ending = asyncio.create_task(asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True))
        done, _ = await asyncio.wait([ending], timeout=self._patience)
        if not done:
            for process in list((pool._processes or {}).values()):  # noqa: SLF001  # it may still be starting
                process.kill()
        await ending

    async def _open(self) -> ProcessPoolExecutor:
        """The process is started by a thread: that takes longer than the event loop should stand still."""
        async with self._starting:
            if self._closed:
                raise BrokenProcessPool("The worker stops.")
            pool = self._pool
            if pool is None:
                # Known before it has started: `close` may come meanwhile, and who asks may be cancelled.
                pool = self._pool = ProcessPoolExecutor(
                    max_workers=1,
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_prepare,
                    initargs=(self._url,),
                )
                await asyncio.to_thread(pool.submit, os.getpid)
            return pool

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        """Unless another caller has already replaced it."""
        if self._pool is pool:
            self._pool = None


_ledger: Ledger | None = None
"""The process's own."""


def _prepare(url: str) -> None:
    global _ledger  # noqa: PLW0603  # a process pool's initializer has no other place
    # Ctrl-C in a terminal goes to the whole group; the worker says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Millions of rows come and go, none in a cycle: the usual threshold costs a sixth of the time.
    gc.set_threshold(50_000, 20, 50)
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
