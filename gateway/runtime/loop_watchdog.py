"""Names the code that holds the event loop for more than a second, while every request of the worker waits.

The loop notes regularly that it runs, and a thread looks whether it has. The thread may not run either while
the loop computes in one call that keeps the interpreter to itself; it then sees what the loop does next,
usually in the same function.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NamedTuple

from gateway.observability.conditions import Condition

log = logging.getLogger(__name__)

BLOCKED_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 0.25
"""Between two notes, and between two looks."""
LATE_SECONDS: Final = 0.5
"""A thread that looks so much later than it should was stopped itself."""
REMEMBERED_SECONDS: Final = 3600.0
_OWN: Final = ("gateway.", "adapters.")
_FRAMES: Final = 40


class Beat(NamedTuple):
    at: float
    """Monotonic seconds."""
    processor: float
    """Processor seconds that this process has used."""


class Block(NamedTuple):
    at: float
    """Monotonic seconds."""
    cause: str


def is_blocked(last: Beat, now: Beat, looked: float) -> bool:
    """Whether the loop, rather than the whole process, has stood still. `looked`: when the thread looked
    before."""
    late = now.at - last.at - BEAT_SECONDS
    if late < BLOCKED_SECONDS:
        return False
    computing = now.processor - last.processor >= late / 2
    return computing or now.at - looked < BEAT_SECONDS + LATE_SECONDS


class LoopWatchdog:
    """One worker's. `run` is a background task of its event loop. Mutable: the blocks of the last hour."""

    def __init__(
        self, on_block: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_block`: called in the watching thread with the cause of each block."""
        self._on_block = on_block
        self._clock = clock
        self._beat = Beat(clock(), 0.0)
        self._blocks = deque[Block](maxlen=1000)

    def __repr__(self) -> str:
        return f"<LoopWatchdog {len(self._blocks)} blocks>"

    async def run(self) -> None:
        """Until cancelled."""
        stop = threading.Event()
        ident = threading.get_ident()
        self._beat = Beat(self._clock(), time.process_time())
        thread = threading.Thread(target=self._watch, args=(ident, stop), name="loop watchdog", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                self._beat = Beat(self._clock(), time.process_time())
        finally:
            stop.set()
            thread.join()  # it is about to end

    def conditions(self) -> Iterator[Condition]:
        """For `florin doctor`."""
        now = self._clock()
        while self._blocks and now - self._blocks[0].at > REMEMBERED_SECONDS:
            self._blocks.popleft()
        if self._blocks:
            count, last = len(self._blocks), self._blocks[-1]
            message = f"Blocks in the last hour: {count:,}; last {now - last.at:,.0f} s ago, by {last.cause}."
            yield Condition("loop_blocked", message=message)

    def _watch(self, ident: int, stop: threading.Event) -> None:
        reported, looked = None, self._clock()
        while not stop.wait(BEAT_SECONDS):
            last, now = self._beat, Beat(self._clock(), time.process_time())
            if last is not reported and is_blocked(last, now, looked):
                reported = last
                frames = sys._current_frames()  # noqa: SLF001  # there is no other way to another thread's stack
                self._report(frames.get(ident), now.at - last.at)
            looked = now.at

    def _report(self, frame: FrameType | None, seconds: float) -> None:
        cause, stack = describe(frame)
        log.warning("The event loop has been blocked for %.1f s by %s:\n%s", seconds, cause, stack)
        self._blocks.append(Block(self._clock(), cause))
        self._on_block(cause)


def describe(frame: FrameType | None) -> tuple[str, str]:
    """The innermost function of Florin's own, and the stack."""
    if frame is None:
        return "unknown", ""
    cause, inner = "unknown", frame
    while True:
        module = str(inner.f_globals.get("__name__", ""))
        if module.startswith(_OWN):
            cause = f"{module}.{inner.f_code.co_qualname}"
            break
        if inner.f_back is None:
            break
        inner = inner.f_back
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_FRAMES)
    stack.reverse()
    return cause, "".join(stack.format())
