"""The memory store's documents, their feed, and the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from adapters.errors import ConflictError
from adapters.store.continuity import Position, loss, mark_after
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import (
    DOCUMENT_KINDS,
    AuditEntry,
    AuditNote,
    Change,
    Event,
    GapError,
    Restored,
    Snapshot,
    check_kinds,
    dump_note,
    load_note,
)
from tests.doubles.memory_activity import MemoryActivity

QUIET_S = 0.9


def _entry_id(text: str) -> tuple[int, int]:
    ms, _, n = text.partition("-")
    return int(ms), int(n)


class MemoryRegistry(MemoryActivity):
    def __init__(self, clock: Callable[[], int] | None) -> None:
        super().__init__(clock)
        self._seq = 0
        self._mark = ""
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._documents: dict[str, dict[str, str]] = {kind: {} for kind in (*DOCUMENT_KINDS, "placement")}
        self._audit: list[tuple[tuple[int, int], str]] = []

    @property
    def _position(self) -> Position:
        return Position(self._secrets.get("installation", ""), seq=self._seq, mark=self._mark)

    async def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        while True:
            events = self._after(after)
            if not events:
                await self._some_news()
                events = self._after(after)
            after += len(events)
            yield events

    def _after(self, seq: int) -> list[Event]:
        self._now()
        if self._seq < seq:
            raise GapError(f"the feed ends before event {seq}: the server has lost data")
        missing = self._seq - seq
        if missing > len(self._events):
            raise GapError(f"event {seq + 1} is gone")
        return self._events[len(self._events) - missing :]

    async def _some_news(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await self._news.wait()

    async def commit(
        self, changes: Sequence[Change], *, audit: AuditNote | None = None, fence: Fence | None = None
    ) -> int:
        now = self._now()
        check_kinds(changes)
        self._check(fence)
        for change in changes:
            standing = self._documents[change.kind].get(change.id)
            if change.expect not in ("any", standing):
                raise ConflictError(f"{change.kind} {change.id} was changed concurrently.")
        for change in changes:
            self._emit(change.kind, change.id, change.data)
        if audit:
            last = self._audit[-1][0] if self._audit else (0, 0)
            self._audit.append((max((now, 0), (last[0], last[1] + 1)), dump_note(audit)))
        return self._seq

    async def audit(self, after: str = "", *, count: int = 1000) -> list[AuditEntry]:
        self._now()
        entries = [e for e in self._audit if not after or e[0] > _entry_id(after)]
        return [AuditEntry(f"{ms}-{n}", load_note(text)) for (ms, n), text in entries[:count]]

    async def trim_audit(self, through: str, *, keep: int) -> None:
        self._now()
        old = self._audit[: max(0, len(self._audit) - keep)]
        self._audit = [e for e in old if e[0] > _entry_id(through)] + self._audit[len(old) :]

    def _emit(self, kind: str, id_: str, data: str | None) -> None:
        if data is None:
            self._documents[kind].pop(id_, None)
        else:
            self._documents[kind][id_] = data
        self._seq, self._mark = self._seq + 1, mark_after(self._mark, kind, id_, data)
        self._events.append(Event(self._seq, kind, id_, data, self._mark))
        self._news.set()
        self._news = asyncio.Event()

    # -- continuity: this store never loses data -------------------------------------------------------

    def trust(self, position: Position) -> None:
        pass

    async def inspect(self, known: Position) -> tuple[Position, str]:
        self._now()
        at = next((e.mark for e in self._events if e.seq == known.seq), None)
        return self._position, loss(known, self._position, at)

    async def snapshot_unchecked(self) -> Snapshot:
        raise NotImplementedError("what a server has left after a loss: this store never loses anything")

    async def begin_epoch(
        self, found: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        raise NotImplementedError("an operator's decision after a loss: this store never loses anything")

    def trim(self, keep: int) -> None:
        """Drop all events but the last `keep` from the feed, as a server does in time."""
        self._events = self._events[-keep:] if keep else []
