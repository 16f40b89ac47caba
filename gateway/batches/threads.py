"""Threads of their own for the database, so that batches and files keep no other part of the worker waiting
when it is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
THREADS: Final = 4


class InThread(Protocol):
    """Like asyncio.to_thread."""

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


class Threads:
    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Waits for what runs; what has not begun is dropped."""
        self._executor.shutdown(cancel_futures=True)
