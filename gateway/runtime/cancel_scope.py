"""Gives each reason to stop waiting a scope and an exception of its own.

`task.cancel()` says neither who stops a task nor how much of it. So a client's disconnect and an engine's
failure each cancel a scope, which raises what it was cancelled with. Only the server cancels tasks: a
CancelledError that leaves all scopes means that it is shutting down.
"""

from __future__ import annotations

import asyncio


class CancelScope:
    """A block that can be cancelled from outside, like `asyncio.timeout` without a clock. It may be entered
    again, but not within itself. Mutable, and used on one event loop only."""

    __slots__ = ("_cancelling", "_task", "_waking", "reason", "within")

    def __init__(self) -> None:
        self.reason: Exception | None = None
        """What it was cancelled with; None: it was not."""
        self._task: asyncio.Task[object] | None = None
        """The task inside; None: nothing is."""
        self._cancelling = 0
        """The task's cancellation requests when it entered."""
        self._waking = False
        """The task was woken, and has not left yet."""
        self.within: CancelScope | None = None
        """A scope that its task has entered already, if one is known: that saves asking for the task."""

    def __repr__(self) -> str:
        return f"<CancelScope {'entered' if self._task else 'left'} reason={self.reason!r}>"

    def cancel(self, reason: Exception) -> None:
        """Raise `reason` in the block: where it waits now, or as soon as it is entered. Only the first call
        has an effect."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._task is not None:
            self._waking = True
            self._task.cancel()

    def __enter__(self) -> None:
        if self.reason is not None:
            raise self.reason
        task = self.within._task if self.within is not None else None  # noqa: SLF001  # of the same class
        if task is None:
            task = asyncio.current_task()
            assert task is not None
        self._task, self._cancelling = task, task.cancelling()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        task, self._task = self._task, None
        if not self._waking or task is None:
            return
        self._waking = False
        alone = task.uncancel() <= self._cancelling
        if alone and kind is asyncio.CancelledError and self.reason is not None:
            raise self.reason from error
