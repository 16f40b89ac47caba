"""The registry in Redis. See the protocol of the same name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from time import monotonic
from typing import Final

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from adapters.errors import ConflictError, RegistryRegressedError
from adapters.store.continuity import Position, mark_after
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
    after_entry,
    check_kinds,
    dump_note,
    load_note,
    with_time_left,
)
from adapters.store.redis.connection import bounded, client, unavailable
from adapters.store.redis.epochs import (
    POSITION_REPLIES,
    Keys,
    ask_position,
    position_of,
    replace_all,
    write_epoch,
)
from adapters.store.redis.server import RedisServer

log = logging.getLogger(__name__)

BATCH: Final = 256
"""Events per read of the feed. Applying so many takes a few milliseconds, which requests wait for."""
FREQUENT_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.005
"""If two reads find events within the first, the next read waits for the second: a read costs as much as ten
events."""
QUIET_MS: Final = 900
"""How long a read of the feed blocks; the protocol promises a batch at least once a second."""


class RedisRegistry(RedisServer):
    """`RegistryStore` in Redis."""

    async def snapshot(self) -> Snapshot:
        snapshot, lost = await self._snapshot(self._known)
        if lost:
            raise RegistryRegressedError(lost)
        return snapshot

    async def snapshot_unchecked(self) -> Snapshot:
        return (await self._snapshot(Position()))[0]

    async def _snapshot(self, known: Position) -> tuple[Snapshot, str]:
        async with self._redis.pipeline(transaction=True) as pipe:
            ask_position(pipe, Keys(self._key), known)
            pipe.time()
            pipe.hgetall(self._key("until"))
            pipe.hgetall(self._key("placement"))
            for kind in DOCUMENT_KINDS:
                pipe.hgetall(self._key("doc", kind))
            replies = await self._bounded(pipe.execute(), self._timeout * 5, operation="snapshot")
        head = POSITION_REPLIES + 3
        (*position_replies, time, until, placement), documents = replies[:head], replies[head:]
        position, lost = position_of(position_replies, known)
        now = self._ms(time)
        snapshot = dict(zip(DOCUMENT_KINDS, documents, strict=True))
        snapshot["placement"] = {
            id_: with_time_left(text, int(until[id_]) - now) if id_ in until else text
            for id_, text in placement.items()
        }
        return Snapshot(position, snapshot), lost

    async def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        feed = self._key("feed")
        # a dedicated connection, because its reads block
        redis = client(self._url, self._timeout, 1, tag=self._tag)
        mark = self._known.mark if self._known.seq == after else ""
        latest = 0.0
        try:
            while True:
                entries = await bounded(
                    redis.xread({feed: f"{after}-0"}, count=BATCH, block=QUIET_MS), self._timeout
                )
                if not entries:
                    await self._check_tail(redis, after, mark)
                events = [_event(entry) for entry in entries[0][1]] if entries else []
                for event in events:
                    after += 1
                    if event.seq != after:
                        raise GapError(f"event {after} is gone: the feed continues with {event.seq}")
                    if mark and event.mark not in ("", mark_after(mark, event.kind, event.id, event.data)):
                        raise GapError(f"event {after - 1} has changed since this worker read it")
                    mark = event.mark
                yield events
                if events:
                    previous, latest = latest, monotonic()
                    if latest - previous < FREQUENT_SECONDS and len(events) < BATCH:
                        await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await redis.aclose()

    async def commit(
        self, changes: Sequence[Change], *, audit: AuditNote | None = None, fence: Fence | None = None
    ) -> int:
        check_kinds(changes)
        role, token = self._fence(fence)
        keys = [self._key("feed"), self._key("audit"), role, *(self._key("doc", c.kind) for c in changes)]
        arguments = [token, dump_note(audit) if audit else ""]
        arguments += [part for c in changes for part in _arguments(c)]
        done, number = await self._run("commit", keys, arguments)
        if done == 0:
            change = changes[number - 1]
            raise ConflictError(f"{change.kind} {change.id} was changed concurrently.")
        self._check_fence(fence, done != -1)
        if audit:
            log.info("%s", _log_line(audit))
        return int(number)

    async def audit(self, after: str = "", *, count: int = 1000) -> list[AuditEntry]:
        start = after_entry(after) if after else "-"
        entries = await self._bounded(self._redis.xrange(self._key("audit"), start, count=count))
        return [AuditEntry(id_, load_note(fields["note"])) for id_, fields in entries]

    async def trim_audit(self, through: str, *, keep: int) -> None:
        first = after_entry(through)
        if keep > 0:  # entries added between the two commands are newer, so at least `keep` remain
            newest = await self._bounded(self._redis.xrevrange(self._key("audit"), count=keep))
            if len(newest) < keep:
                return
            first = min(first, newest[-1][0], key=_order)
        await self._bounded(self._redis.xtrim(self._key("audit"), minid=first, approximate=False))

    def trust(self, position: Position) -> None:
        self._known = position

    async def inspect(self, known: Position) -> tuple[Position, str]:
        async with self._redis.pipeline(transaction=True) as pipe:
            ask_position(pipe, Keys(self._key), known)
            return position_of(await self._bounded(pipe.execute()), known)

    async def begin_epoch(
        self, current: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        """Uses a transaction instead of a script, because a script would block the server for as long as it
        writes a large registry, and because the writes do not depend on intermediate reads."""
        left = await self.snapshot_unchecked()
        keys = Keys(self._key)
        changed = ConflictError("The registry has changed since it was inspected; inspect it again first.")
        async with self._redis.pipeline(transaction=True) as pipe:
            with unavailable():
                await pipe.watch(*keys.position)
            now_found, _ = await self.inspect(current)
            if now_found != current or left.position != current:
                raise changed
            now = self._ms(await self._bounded(self._redis.time()))
            pipe.multi()  # type: ignore[no-untyped-call]  # redis-py's
            if restored.documents is not None:
                replace_all(pipe, keys, left, restored.documents, now)
            for name, secret in restored.secrets.items():
                pipe.set(self._key("secret", name), secret, nx=restored.documents is None)
            write_epoch(pipe, keys, current, begun)
            pipe.xadd(self._key("audit"), {"note": dump_note(note)})
            try:
                await self._bounded(pipe.execute(), self._timeout * 5)
            except redis_errors.WatchError:
                raise changed from None

    async def _check_tail(self, redis: Redis, after: int, mark: str) -> None:
        """Raises GapError if event `after` is not the last one or has changed."""
        last = await self._bounded(redis.xrevrange(self._key("feed"), count=1))
        seq, fields = (_seq(last[0][0]), last[0][1]) if last else (0, {})
        if seq < after:
            raise GapError(f"the feed ends before event {after}: the server has lost data")
        if seq == after and mark and fields.get("mark", mark) != mark:
            raise GapError(f"event {after} has changed: the server has lost data")


def _log_line(note: AuditNote) -> str:
    """The log line: names and an engine's state only, because other details may contain source URLs."""
    version = f"@{note.version}" if note.version else ""
    state = note.details.get("state")
    about = f" (state {state['new']})" if isinstance(state, dict) and "old" in state else ""
    return f"{note.action} {note.subject}{version}{about} by {note.actor}"


def _order(entry_id: str) -> tuple[int, int]:
    ms, _, n = entry_id.partition("-")
    return int(ms), int(n)


def _arguments(change: Change) -> tuple[str, str, str, str, str, str]:
    operation = "-" if change.data is None else "+"
    expectation = "?" if change.expect == "any" else "-" if change.expect is None else "="
    return change.kind, change.id, operation, change.data or "", expectation, change.expect or ""


def _seq(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def _event(entry: tuple[str, dict[str, str]]) -> Event:
    entry_id, fields = entry
    return Event(
        seq=_seq(entry_id),
        kind=fields["kind"],
        id=fields["id"],
        data=fields.get("data"),
        mark=fields.get("mark", ""),
    )
