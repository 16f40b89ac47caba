"""The half of the store's twin that is not about placement: documents, feed, audit, roles, agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from adapters.errors import ConflictError, FencedError, StoreUnavailableError
from adapters.store.continuity import Position, loss, mark_after
from adapters.store.protocol import (
    DOCUMENT_KINDS,
    AuditEntry,
    AuditNote,
    Change,
    Event,
    Fence,
    GapError,
    Restored,
    ServerInfo,
    Snapshot,
    check_kinds,
    dump_note,
    load_note,
)

QUIET_S = 0.9


def _entry_id(text: str) -> tuple[int, int]:
    ms, _, n = text.partition("-")
    return int(ms), int(n)


class MemoryDocuments:
    """`clock`: ms. `away` = True makes every call fail as if the server could not be reached."""

    def __init__(self, clock: Callable[[], int] | None) -> None:
        self.away = False
        self._clock = clock or (lambda: time.monotonic_ns() // 1_000_000)
        self._position = Position()
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._documents: dict[str, dict[str, str]] = {kind: {} for kind in (*DOCUMENT_KINDS, "placement")}
        self._roles: dict[str, tuple[int, int, str]] = {}
        self._audit: list[tuple[tuple[int, int], str]] = []
        self._heartbeats: dict[str, tuple[int, str]] = {}
        self._secrets: dict[str, str] = {}

    @property
    def _seq(self) -> int:
        return self._position.seq

    def _now(self) -> int:
        if self.away:
            raise StoreUnavailableError("Redis cannot be reached: the test says so.")
        return self._clock()

    # -- documents, their feed, the audit ---------------------------------------------------------------

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
        mark = mark_after(self._position.mark, kind, id_, data)
        self._position = replace(self._position, seq=self._seq + 1, mark=mark)
        self._events.append(Event(self._seq, kind, id_, data, mark))
        self._news.set()
        self._news = asyncio.Event()

    # -- its history, of which it never loses anything ---------------------------------------------------

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

    # -- agents ---------------------------------------------------------------------------------------

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        self._heartbeats[engine] = (self._now() + ttl_ms, text)

    async def heartbeats(self) -> dict[str, str]:
        now = self._now()
        self._heartbeats = {
            engine: heartbeat for engine, heartbeat in self._heartbeats.items() if heartbeat[0] > now
        }
        return {engine: text for engine, (_, text) in self._heartbeats.items()}

    # -- roles and secrets ----------------------------------------------------------------------------

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        now = self._now()
        until, token, holder = self._roles.get(role, (0, now, ""))
        if holder != owner and (until > now or ttl_ms == 0):
            return 0
        if ttl_ms == 0:
            self._roles[role] = (0, token, "")
            return token
        token += holder != owner
        self._roles[role] = (now + ttl_ms, token, owner)
        return token

    def _check(self, fence: Fence | None) -> None:
        if fence is None:
            return
        _, token, holder = self._roles.get(fence.role, (0, 0, ""))
        if token != fence.token or not holder:
            raise FencedError(f"Another worker holds the role {fence.role} now; nothing was changed.")

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        self._now()
        secret = self._secrets.setdefault(name, fresh)
        self._position = replace(self._position, installation=self._secrets.get("installation", ""))
        return secret

    async def time(self) -> int:
        return self._now() * 1000

    async def server_info(self) -> ServerInfo:
        self._now()
        return ServerInfo("memory", persistent=False)

    async def close(self) -> None:
        pass
