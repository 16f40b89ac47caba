"""The ledger process: computes reports, closings and roll-ups outside the worker, so that they do not delay
requests.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any, Concatenate, ParamSpec, TypeVar

from adapters.child_process import settle
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")


class LedgerProcess:
    """Runs ledger functions in a child process of this worker, one at a time.

    The process starts with the first call, opens its own connection to the ledger, runs at low priority, and
    ends with the worker, even if the worker is killed. Calls wait in order. Long jobs and tenants' queries
    have their own processes (`aside`, `for_tenants`), so that operators and analysts do not wait behind them.
    If the process dies, the call is retried once in a new one, so functions must be safe to repeat.

    Called by the finance API and the maintenance job, on the event loop.
    """

    def __init__(self, ledger_url: str, *, patience: float = 3.0) -> None:
        """`patience`: seconds that a running call may take to finish when the worker stops."""
        self._url = ledger_url
        self._patience = patience
        self._starting = asyncio.Lock()
        # Mutable: the process, once it has started.
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        self._beside: dict[str, LedgerProcess] = {}

    def __repr__(self) -> str:
        return f"<LedgerProcess {'open' if self._pool else 'not opened'}>"

    async def run(
        self, function: Callable[Concatenate[Ledger, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `function(ledger, *args, **kwargs)` in the process and return its result. The function must be
        defined at the top level of a module; arguments and result must be picklable. Raises what it raises,
        LedgerUnavailableError if the process cannot start, and BrokenProcessPool if it died (killed, out of
        memory) twice."""
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
        """A second process, for work that takes minutes. It is closed with this one."""
        return self._other("aside")

    def for_tenants(self) -> LedgerProcess:
        """A third process, for tenants' own queries. It is closed with this one."""
        return self._other("tenants")

    def _other(self, name: str) -> LedgerProcess:
        if name not in self._beside:
            self._beside[name] = LedgerProcess(self._url, patience=self._patience)
        return self._beside[name]

    async def close(self) -> None:
        """Let a running call finish within the patience, then kill it; what it had not committed is
        undone."""
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
        """Return the process, starting it in a thread if needed: that would block the event loop."""
        async with self._starting:
            if self._closed:
                raise BrokenProcessPool("The worker is shutting down.")
            pool = self._pool
            if pool is None:
                # Assigned before it has started, so that `close` finds it even if this call is cancelled.
                pool = self._pool = ProcessPoolExecutor(
                    max_workers=1,
                    mp_context=get_context("spawn"),
                    initializer=_prepare,
                    initargs=(self._url,),
                )
                try:
                    await asyncio.to_thread(pool.submit, os.getpid)
                except (OSError, EOFError) as error:  # too many processes, or no memory
                    self._forget(pool)
                    raise LedgerUnavailableError(f"The ledger process cannot start: {error}.") from error
            return pool

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        """Forget the pool, unless another caller has already replaced it."""
        if self._pool is pool:
            self._pool = None


_ledger: Ledger | None = None
"""The ledger of this child process."""


def _prepare(url: str) -> None:
    global _ledger  # noqa: PLW0603  # set by the pool's initializer
    settle()
    # Millions of rows without reference cycles: the default threshold costs a sixth of the time.
    gc.set_threshold(50_000, 20, 50)
    _ledger = Ledger(url)


def _call(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    assert _ledger is not None
    return function(_ledger, *args, **kwargs)
