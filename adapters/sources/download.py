"""Downloads that survive lost connections and fail if a server is too slow or fails too often.

`download` fetches one resource, resuming after each interruption with a range request. It starts over if the
server cannot resume or the resource has changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adapters.progress import ProgressMeter
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError, check_space, too_much

T = TypeVar("T")

SLOWEST = 1024
"""Bytes per second."""
_MORE_ATTEMPTS = 20
"""Multiple of `FetchOptions.attempts`: limit on connections in total, however much each delivers."""


@dataclass(frozen=True, slots=True)
class DownloadPart:
    """A response: the resource from `start` to its end."""

    start: int
    total: int | None
    """Size of the whole resource, if known."""
    validator: str | None
    """Identifies the content, such as a strong ETag; None if the server sends none."""
    chunks: AsyncIterator[bytes]
    headers: Mapping[str, str]
    """The response's, case-insensitive."""


Open = Callable[[int, str | None], AbstractAsyncContextManager[DownloadPart]]
"""`open(start, validator)` returns the resource from `start` on if it still matches `validator`, otherwise
all of the current resource. It and its chunks raise DownloadInterruptedError and SourceRefusedError."""


class DownloadInterruptedError(Exception):
    """A retry may succeed. The message is for the operator."""

    def __init__(self, message: str, *, pause: float = 0.0, afresh: bool = False) -> None:
        super().__init__(message)
        self.pause = pause
        """Seconds to wait, as requested by the server."""
        self.afresh = afresh
        """The bytes so far must be discarded."""


@dataclass(slots=True)
class _State:
    """Mutable state of one download."""

    done: int = 0
    total: int | None = None
    validator: str | None = None
    best: int = 0
    """Highest number of bytes reached; only bytes beyond it count as progress."""


async def download(
    start: Open, target: Path, *, limit: int, what: str, options: FetchOptions, meter: ProgressMeter
) -> DownloadPart:
    """Download the resource to the new file `target` and return its last part, which describes the whole.

    Raises SourceRefusedError (`too_large`, `source_unavailable`, and what `start` raises), OSError for disk
    errors.
    """
    state = _State()
    failures = 0
    with target.open("xb") as file:
        for _ in range(options.attempts * _MORE_ATTEMPTS):
            best = state.best
            try:
                async with start(state.done, state.validator) as part:
                    _update(part, state, meter)
                    file.truncate(state.done)
                    file.seek(state.done)
                    if part.total is not None:
                        if part.total > limit:
                            raise too_much(what, part.total, limit)
                        check_space(target.parent, part.total - state.done)
                        meter.expect(part.total - state.done)
                    async with aclosing(_fail_if_slow(part.chunks, options.stall_seconds)) as chunks:
                        async for chunk in chunks:
                            state.done += len(chunk)
                            if state.done > limit:
                                raise too_much(what, state.done, limit)
                            file.write(chunk)
                            meter.add(len(chunk))
                if state.total in (None, state.done):
                    return part
                raise DownloadInterruptedError(f"it ended after {state.done} of {state.total} bytes")
            except DownloadInterruptedError as error:
                state.best = max(state.best, state.done)
                failures = 1 if state.best > best else failures + 1
                if failures > options.attempts:
                    raise unavailable(what, str(error)) from error
                if error.afresh or state.validator is None:
                    meter.add(-state.done)
                    state.done, state.validator, state.total = 0, None, None
                await asyncio.sleep(max(options.pause(failures - 1), error.pause))
    raise unavailable(what, "the connection was lost too often")


async def persist(call: Callable[[], Awaitable[T]], *, what: str, options: FetchOptions) -> T:
    """Retry `call` on DownloadInterruptedError, as often as `options` allows."""
    for attempt in range(options.attempts + 1):
        try:
            async with asyncio.timeout(options.stall_seconds):
                return await call()
        except (DownloadInterruptedError, TimeoutError) as error:
            if attempt == options.attempts:
                raise unavailable(what, str(error) or "timed out") from error
            await asyncio.sleep(options.pause(attempt))
    raise AssertionError("the last attempt returns or raises")


def _update(part: DownloadPart, state: _State, meter: ProgressMeter) -> None:
    """Update the state from the part. Raises DownloadInterruptedError if the part does not continue what is
    here."""
    if part.start == 0:
        meter.add(-state.done)
        state.done, state.total, state.validator = 0, part.total, part.validator
    elif part.start != state.done or part.validator != state.validator or part.total != state.total:
        raise DownloadInterruptedError("the server continued with different content", afresh=True)


def unavailable(what: str, reason: str) -> SourceRefusedError:
    return SourceRefusedError(
        "source_unavailable",
        f"{what} could not be fetched.",
        found=reason,
        expected="a response from the server",
    )


async def _fail_if_slow(chunks: AsyncIterator[bytes], stall: float) -> AsyncGenerator[bytes, None]:
    """Yield the chunks; fail if less than `SLOWEST` bytes per second arrive within `stall` seconds."""
    since, came = time.monotonic(), 0
    while True:
        try:
            async with asyncio.timeout(stall):
                chunk = await anext(chunks, b"")
        except TimeoutError:
            raise DownloadInterruptedError(f"no data for {stall:g} s") from None
        if not chunk:
            return
        came += len(chunk)
        now = time.monotonic()
        if now - since >= stall:
            if came < SLOWEST * stall:
                raise DownloadInterruptedError(f"only {came} bytes in {now - since:.0f} s")
            since, came = now, 0
        yield chunk


def run(work: Coroutine[Any, Any, T], meter: ProgressMeter) -> T:
    """Run `work` in a new event loop in this thread. While it waits, `meter` is ticked, so that watchers see
    a sign of life and can cancel."""

    async def watch() -> T:
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=0.1))[0]:
                meter.tick()
        finally:
            task.cancel()
            await asyncio.wait({task})
        return task.result()

    return asyncio.run(watch())
