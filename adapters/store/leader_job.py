"""What one worker does for the whole installation: the one that holds the role."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore, Fence

log = logging.getLogger(__name__)

LEASE_MS: Final = 10_000
"""A leader that dies is followed after this time."""
_MOST_FAILURE: Final = 1000
"""Characters of a failure that are kept."""


class PassFailedError(Exception):
    """A pass that failed in a way that its job knows. `at_least`: seconds until the next one."""

    def __init__(self, reason: str, *, at_least: float = 0.0) -> None:
        super().__init__(reason)
        self.at_least = at_least


async def _nothing() -> None: ...


async def _unreported(_failure: str) -> None: ...


@dataclass(slots=True)
class LeaderJob:
    """Every worker runs the job; the one that leads makes its passes, one after the other, and renews the
    role meanwhile. A pass must be such that two overlapping leaders do no harm, or carry the job's `fence`.

    No pass begins while the store cannot be reached. A pass that fails is repeated, and its failure is logged
    when it changes."""

    store: CoordinationStore
    owner: str
    role: str
    title: str
    """What is done, as the subject of a sentence."""
    work: Callable[[], Awaitable[float | None]]
    """One pass. Returns the seconds until the next one, or None for `seconds`. Raises StoreUnavailableError,
    which others log, PassFailedError, or what is `expected`; anything else is a defect."""
    seconds: float
    """Between passes."""
    _: KW_ONLY
    first: float = 0.0
    """Seconds before the first pass of a worker."""
    longest: float = 0.0
    """The pause doubles with each failure up to this, with jitter; unless above `seconds`, it stays."""
    rest: float = 0.0
    """The pause is at least so many times what the pass took, unless that failed as `expected` or says itself
    when the next one is due."""
    lease_ms: int = LEASE_MS
    expected: tuple[type[Exception], ...] = ()
    """What a pass may raise that is no defect: the text is logged, not the stack."""
    ready: Callable[[], bool] = lambda: True
    """Whether there is anything to lead for; otherwise the store is not asked."""
    lost: Callable[[], Awaitable[None]] = _nothing
    """Called when the role is lost, and at the end."""
    report: Callable[[str], Awaitable[None]] = _unreported
    """Gets the failure after each pass; empty if it succeeded. Its own errors are ignored: whatever failed
    may prevent this too."""
    count: Callable[[str, str], None] = lambda _role, _result: None
    """Gets the role and `ok` or `failed` after each pass."""
    clock: Callable[[], float] = time.monotonic
    # Mutable: the proof of holding the role, why the last pass failed, and how many have in a row.
    fence: Fence | None = None
    failure: str = ""
    _failures: int = 0

    async def run(self) -> None:
        """Run until cancelled. Resigns at the end, so that no other worker waits until the lease lapses."""
        renew = self.lease_ms / 3000
        running: asyncio.Task[float] | None = None
        due = self.clock() + self.first
        try:
            while True:
                leads = await self._lead()
                if leads and running is None and self.clock() >= due:
                    running = asyncio.create_task(self.attempt(), name=self.role)
                if running is None:
                    pause = max(0.0, due - self.clock()) if leads else self.seconds
                    await asyncio.sleep(min(renew, pause))
                    continue
                await asyncio.wait([running], timeout=renew)
                if running.done():
                    due = self.clock() + running.result()
                    running = None
        finally:
            if running is not None:
                running.cancel()
                await asyncio.wait([running])
            await self.lost()
            with contextlib.suppress(StoreUnavailableError):  # it then lapses
                await self.store.resign(self.role, self.owner)

    async def _lead(self) -> bool:
        if not self.ready():
            return False
        try:
            token = await self.store.lead(self.role, self.owner, self.lease_ms)
        except StoreUnavailableError:  # the follower of the change feed logs it, once
            return False
        if self.fence is not None and self.fence.token != token:
            self.fence, self.failure, self._failures = None, "", 0
            await self.lost()
        if token and self.fence is None:
            self.fence = Fence(self.role, token)
        return token > 0

    async def attempt(self) -> float:
        """One pass. Returns the seconds until the next."""
        began, failure, pause, rest = self.clock(), "", None, self.rest
        defect: Exception | None = None
        try:
            pause = await self.work()
        except StoreUnavailableError:
            return self.seconds
        except PassFailedError as error:
            failure, pause = str(error), error.at_least
        except self.expected as error:
            failure, rest = str(error), 0.0
        except Exception as error:  # noqa: BLE001 - a defect of one pass must not end the job
            failure, defect = repr(error), error
        if failure and failure != self.failure:
            log.warning("%s failed: %s. Retrying.", self.title, failure.rstrip("."), exc_info=defect)
        elif self.failure and not failure:
            log.warning("%s recovered.", self.title)
        self.failure = failure
        self._failures = self._failures + 1 if failure else 0
        self.count(self.role, "failed" if failure else "ok")
        with contextlib.suppress(Exception):
            await self.report(failure[:_MOST_FAILURE])
        if pause is not None and not failure:
            return pause
        usual = self._backoff() if failure else self.seconds
        return max(usual, pause or 0.0, rest * (self.clock() - began))

    def _backoff(self) -> float:
        """The jitter spreads the retries of many gateways."""
        if self.longest <= self.seconds:
            return self.seconds
        pause = min(self.seconds * 2.0 ** min(self._failures - 1, 20), self.longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
