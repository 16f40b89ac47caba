"""Downloads that survive broken connections, and end when a server is too slow or breaks off too often.

What is fetched is one resource of which a server gives any part. `download` asks for the rest after each
break, and begins anew when the server cannot give it, or when the resource is another one by now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adapters.progress import ProgressMeter
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError, check_space, too_much

T = TypeVar("T")

SLOWEST = 1024
"""Bytes a second."""
_MORE_ATTEMPTS = 20
"""Times `FetchOptions.attempts`: connections in all, however much each brings."""


@dataclass(frozen=True, slots=True)
class DownloadPart:
    """What the server gives: the resource from `start` to its end."""

    start: int
    total: int | None
    """Size of the whole resource, if the server says it."""
    validator: str | None
    """Same text, same bytes; None: nothing says so."""
    chunks: AsyncIterator[bytes]


Open = Callable[[int, str | None], AbstractAsyncContextManager[DownloadPart]]
"""`open(start, validator)`: the rest from `start` of the resource that `validator` names, or all of what is
there now. It and its chunks raise DownloadInterruptedError and SourceRefusedError."""


class DownloadInterruptedError(Exception):
    """It may work the next time. The message is for the operator."""

    def __init__(self, message: str, *, pause: float = 0.0, afresh: bool = False) -> None:
        super().__init__(message)
        self.pause = pause
        """Seconds that the server asks for."""
        self.afresh = afresh
        """What has come so far is of no use."""


@dataclass(slots=True)
class _State:
    """Of one download; mutable."""

    done: int = 0
    total: int | None = None
    validator: str | None = None
    best: int = 0
    """The most that was ever there: only more than this is a gain."""


async def download(
    start: Open, target: Path, *, limit: int, what: str, options: FetchOptions, meter: ProgressMeter
) -> DownloadPart:
    """Puts the resource into the new file `target`. Its last part is returned, for what it says of the whole.

    Raises SourceRefusedError: what `start` raises, `too_large`, `source_unavailable`; OSError for the disk.
    """
    state = _State()
    failures = 0
    with target.open("xb") as file:
        for _ in range(options.attempts * _MORE_ATTEMPTS):
            best = state.best
            try:
                async with start(state.done, state.validator) as part:
                    _agree(part, state, meter)
                    file.truncate(state.done)
                    file.seek(state.done)
                    if part.total is not None:
                        if part.total > limit:
                            raise too_much(what, part.total, limit)
                        check_space(target.parent, part.total - state.done)
                        meter.expect(part.total - state.done)
                    async with aclosing(_paced(part.chunks, options.stall_seconds)) as chunks:
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
    raise unavailable(what, "it broke off again and again")


async def persist(call: Callable[[], Awaitable[T]], *, what: str, options: FetchOptions) -> T:
    """The answer of `call`, which may fail for the moment (DownloadInterruptedError) as often as `options`
    allows."""
    for attempt in range(options.attempts + 1):
        try:
            async with asyncio.timeout(options.stall_seconds):
                return await call()
        except (DownloadInterruptedError, TimeoutError) as error:
            if attempt == options.attempts:
                raise unavailable(what, str(error) or "no answer in time") from error
            await asyncio.sleep(options.pause(attempt))
    raise AssertionError("the last attempt returns or raises")


def _agree(part: DownloadPart, state: _State, meter: ProgressMeter) -> None:
    """Takes over what the part says of the whole. Raises DownloadInterruptedError when it does not fit what
    is here."""
    if part.start == 0:
        meter.add(-state.done)
        state.done, state.total, state.validator = 0, part.total, part.validator
    elif part.start != state.done or part.validator != state.validator or part.total != state.total:
        raise DownloadInterruptedError("the server goes on with something else", afresh=True)


def unavailable(what: str, reason: str) -> SourceRefusedError:
    return SourceRefusedError(
        "source_unavailable", f"{what} could not be fetched.", found=reason, expected="a server that answers"
    )


async def _paced(chunks: AsyncIterator[bytes], stall: float) -> AsyncGenerator[bytes, None]:
    """The chunks, as long as `SLOWEST` bytes a second come in each `stall` seconds."""
    since, came = time.monotonic(), 0
    while True:
        try:
            async with asyncio.timeout(stall):
                chunk = await anext(chunks, b"")
        except TimeoutError:
            raise DownloadInterruptedError(f"nothing came for {stall:g} s") from None
        if not chunk:
            return
        came += len(chunk)
        now = time.monotonic()
        if now - since >= stall:
            if came < SLOWEST * stall:
                raise DownloadInterruptedError(f"only {came} bytes came in {now - since:.0f} s")
            since, came = now, 0
        yield chunk


def run(work: Coroutine[Any, Any, T], meter: ProgressMeter) -> T:
    """Runs `work` in a loop of its own, in this thread. While nothing comes, `meter` is ticked: whoever
    watches sees that it is waiting, and can end it."""

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
