"""The store on Redis or Valkey. Atomic operations are Lua scripts in `lua/`; the rest are single commands.

All keys carry the installation's hash tag, so that they share one slot of a Redis Cluster:

    {florin}:doc:<kind>         hash    id → JSON
    {florin}:feed               stream  <seq>-0 → kind, id, data (absent: deleted), mark
    {florin}:placement          hash    engine/version → JSON of model.Placement
    {florin}:until              hash    engine/version → ms at which `loading` or `leaving` expires
    {florin}:where              hash    version → engines that it is assigned to
    {florin}:recency:<engine>   zset    version → ms of last use; every member has a slot
    {florin}:leases:<engine>    hash    version|worker → ms at which the lease expires,
                                        version|worker|n → its requests in flight
    {florin}:role:<name>        string  deadline, fence token and holder
    {florin}:audit              stream  server's id → note (JSON of protocol.AuditNote)
    {florin}:heartbeats         hash    engine → expiry, and the agent's report
    {florin}:secret:<name>      string
    {florin}:epoch              string  JSON: its number, and the installations that this one replaced

Times come from the server's clock, so the workers' clocks do not matter.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from adapters.errors import ConflictError, FencedError, RegistryRegressedError, StoreUnavailableError
from adapters.store.connection import bounded, client, parse_server_info, unavailable, without_password
from adapters.store.continuity import Position, mark_after
from adapters.store.epochs import POSITION_REPLIES, Keys, ask_position, position_of, replace_all, write_epoch
from adapters.store.protocol import (
    DOCUMENT_KINDS,
    AuditEntry,
    AuditNote,
    Change,
    Claim,
    ClaimResult,
    Event,
    Fence,
    GapError,
    Restored,
    ServerInfo,
    Snapshot,
    Touch,
    after_entry,
    check_kinds,
    dump_note,
    load_note,
    with_time_left,
)

log = logging.getLogger(__name__)

LUA: Final = Path(__file__).parent / "lua"
BATCH: Final = 1000
"""Events per read of the feed."""
QUIET_MS: Final = 900
"""How long a read of the feed blocks; the protocol promises a batch at least once a second."""
CONNECTIONS: Final = 32
"""Connections per store; further callers wait for one."""

REGRESSED: Final = "REGRESSED"
"""Prefix of the error that a script returns if the server lacks the caller's last event."""

Clock = Callable[[], int]


class _Script:
    """One Lua file, prefixed with the files that it depends on."""

    def __init__(self, *names: str) -> None:
        self.name = names[-1]
        self.text = "\n".join((LUA / f"{name}.lua").read_text() for name in ("prelude", *names))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """`adapters.store.protocol.Store` on one Redis or Valkey server (or the primary behind a service name).

    Invariants: a call is never retried, because a lost reply does not tell whether the command ran; every
    error of the server or the network becomes StoreUnavailableError; every script checks that the registry
    continues the position passed to `trust`, which the `Follower` keeps up to date. Any task on the store's
    event loop may call any method. Mutable state: the trusted position and the connections.

    `url`: redis://, rediss:// or unix://. Connects on the first call. `timeout`: seconds for any call except
    a snapshot, including connecting. `clock`: returns ms, instead of the server's clock; for tests.
    """

    def __init__(
        self, url: str, *, prefix: str = "florin", clock: Clock | None = None, timeout: float = 2.0
    ) -> None:
        self._url = url
        self._tag = f"{{{prefix}}}"
        self._clock = clock
        self._timeout = timeout
        self.observe: Callable[[str, float], None] = lambda _operation, _seconds: None
        """Receives the duration of each call, failed or not, by operation: a script's name, `read` or
        `snapshot`."""
        self._redis = client(url, timeout, CONNECTIONS)
        self._commit = _Script("fence", "commit")
        self._claim = _Script("placement", "claim")
        self._confirm = _Script("placement", "confirm")
        self._abandon = _Script("placement", "abandon")
        self._unplace = _Script("fence", "placement", "unplace")
        self._mark_lost = _Script("fence", "placement", "mark_lost")
        self._touch = _Script("touch")
        self._lead = _Script("lead")
        self._heartbeat = _Script("heartbeat")
        self._heartbeats = _Script("heartbeats")
        self._known = Position()  # mutable: the trusted position

    def __repr__(self) -> str:
        return f"<RedisStore {self._tag} at {without_password(self._url)}>"

    # -- documents and their feed ---------------------------------------------------------------------

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
        (*asked, time, until, placement), documents = replies[:head], replies[head:]
        found, lost = position_of(asked, known)
        now = self._ms(time)
        snapshot = dict(zip(DOCUMENT_KINDS, documents, strict=True))
        snapshot["placement"] = {
            id_: with_time_left(text, int(until[id_]) - now) if id_ in until else text
            for id_, text in placement.items()
        }
        return Snapshot(found, snapshot), lost

    async def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        feed = self._key("feed")
        redis = client(self._url, self._timeout, 1)  # a dedicated connection, because its reads block
        mark = self._known.mark if self._known.seq == after else ""
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
        done, number = await self._run(self._commit, keys, arguments)
        if done == 0:
            change = changes[number - 1]
            raise ConflictError(f"{change.kind} {change.id} was changed concurrently.")
        _check(fence, done != -1)
        if audit:
            log.info("%s", _told(audit))
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

    # -- placement ------------------------------------------------------------------------------------

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        ignore: Iterable[str] = (),
        reload: bool = False,
    ) -> Claim:
        ignored = sorted(set(ignore) - {engine})
        keys = [*self._placement_keys(engine), self._key("doc", "pin")]
        for name in ignored:
            keys += self._engine_keys(name)
        arguments = [engine, version, slots, owner, ttl_ms, int(reload), *ignored]
        result, where, victim = await self._run(self._claim, keys, arguments)
        return Claim(ClaimResult(result), where, victim)

    async def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int) -> bool:
        arguments = [engine, version, owner, grace_ms]
        return bool(await self._run(self._confirm, self._placement_keys(engine), arguments))

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        return bool(await self._run(self._abandon, self._placement_keys(engine), [engine, version, owner]))

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        role, token = self._fence(fence)
        keys = [*self._placement_keys(engine), role]
        _check(fence, await self._run(self._unplace, keys, [engine, version or "", token]))

    async def mark_lost(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        role, token = self._fence(fence)
        keys = [*self._placement_keys(engine), role]
        arguments = [engine, token, int(versions is None), *(versions or ())]
        _check(fence, await self._run(self._mark_lost, keys, arguments))

    async def touch(self, worker: str, touches: Sequence[Touch], *, ttl_ms: int) -> None:
        if not touches:
            return
        engines = sorted({t.engine for t in touches})
        keys = [self._key("feed")]
        place = {}
        for engine in engines:
            place[engine] = len(keys) + 1  # Lua counts from 1
            keys += self._engine_keys(engine)
        uses = [[place[t.engine], t.version, t.age_ms, t.in_flight] for t in touches]
        await self._run(self._touch, keys, [worker, ttl_ms, json.dumps(uses)])

    async def recency(self, engine: str) -> dict[str, int]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.zrange(self._key("recency", engine), 0, -1, desc=True, withscores=True)
            time, scores = await self._bounded(pipe.execute())
        now = self._ms(time)
        return {version: max(0, now - int(last)) for version, last in scores}

    async def leases(self, engine: str) -> dict[str, int]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hgetall(self._key("leases", engine))
            time, leases = await self._bounded(pipe.execute())
        now = self._ms(time)
        live: dict[str, int] = {}
        for lease, deadline in leases.items():
            if not lease.endswith("|n") and int(deadline) > now:
                version = lease.partition("|")[0]
                live[version] = live.get(version, 0) + int(leases.get(f"{lease}|n", 1))
        return live

    # -- agents ---------------------------------------------------------------------------------------

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        await self._run(self._heartbeat, [self._key("feed"), self._key("heartbeats")], [engine, ttl_ms, text])

    async def heartbeats(self) -> dict[str, str]:
        living = await self._run(self._heartbeats, [self._key("feed"), self._key("heartbeats")], [])
        return dict(zip(living[::2], living[1::2], strict=True))

    # -- roles and secrets ----------------------------------------------------------------------------

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        keys = [self._key("feed"), self._key("role", role)]
        return int(await self._run(self._lead, keys, [owner, ttl_ms]))

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        key = self._key("secret", name)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.setnx(key, fresh)
            pipe.get(key)
            _, secret = await self._bounded(pipe.execute())
        return str(secret)

    async def time(self) -> int:
        seconds, micros = await self._bounded(self._redis.time())
        return self._clock() * 1000 if self._clock else int(seconds) * 1_000_000 + int(micros)

    # -- continuity -----------------------------------------------------------------------------------

    def trust(self, position: Position) -> None:
        self._known = position

    async def inspect(self, known: Position) -> tuple[Position, str]:
        async with self._redis.pipeline(transaction=True) as pipe:
            ask_position(pipe, Keys(self._key), known)
            return position_of(await self._bounded(pipe.execute()), known)

    async def begin_epoch(
        self, found: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        """Uses a transaction instead of a script, because a script would block the server for as long as it
        writes a large registry, and because the writes do not depend on intermediate reads."""
        left = await self.snapshot_unchecked()
        keys = Keys(self._key)
        changed = ConflictError("The registry has changed since it was inspected; inspect it again first.")
        async with self._redis.pipeline(transaction=True) as pipe:
            with unavailable():
                await pipe.watch(*keys.position)
            now_found, _ = await self.inspect(found)
            if now_found != found or left.position != found:
                raise changed
            now = self._ms(await self._bounded(self._redis.time()))
            pipe.multi()  # type: ignore[no-untyped-call]  # redis-py's
            if restored.documents is not None:
                replace_all(pipe, keys, left, restored.documents, now)
            for name, secret in restored.secrets.items():
                pipe.set(self._key("secret", name), secret, nx=restored.documents is None)
            write_epoch(pipe, keys, found, begun)
            pipe.xadd(self._key("audit"), {"note": dump_note(note)})
            try:
                await self._bounded(pipe.execute(), self._timeout * 5)
            except redis_errors.WatchError:
                raise changed from None

    async def server_info(self) -> ServerInfo:
        try:
            info = await self._bounded(self._redis.info())
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, redis_errors.NoPermissionError):
                return ServerInfo("Redis")
            raise
        try:
            saves = (await self._bounded(self._redis.config_get("save"))).get("save")
        except (StoreUnavailableError, redis_errors.ResponseError):  # many hosted servers disallow CONFIG
            saves = None
        return parse_server_info(info, saves)

    async def close(self) -> None:
        await self._redis.aclose()

    # -- calling the server ---------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return ":".join((self._tag, *parts))

    def _engine_keys(self, engine: str) -> list[str]:
        return [self._key("recency", engine), self._key("leases", engine)]

    def _placement_keys(self, engine: str) -> list[str]:
        return [*map(self._key, ("feed", "placement", "until", "where")), *self._engine_keys(engine)]

    def _fence(self, fence: Fence | None) -> tuple[str, str]:
        """The role's key and the token; without a fence, a key that no script reads."""
        return (self._key("role", fence.role), str(fence.token)) if fence else (self._key("feed"), "")

    def _ms(self, time: tuple[int, int]) -> int:
        return self._clock() if self._clock else time[0] * 1000 + time[1] // 1000

    async def _check_tail(self, redis: Redis, after: int, mark: str) -> None:
        """Raises GapError if event `after` is not the last one or has changed."""
        last = await self._bounded(redis.xrevrange(self._key("feed"), count=1))
        seq, fields = (_seq(last[0][0]), last[0][1]) if last else (0, {})
        if seq < after:
            raise GapError(f"the feed ends before event {after}: the server has lost data")
        if seq == after and mark and fields.get("mark", mark) != mark:
            raise GapError(f"event {after} has changed: the server has lost data")

    async def _run(self, script: _Script, keys: list[str], arguments: list[Any]) -> Any:
        now = self._clock() if self._clock else ""
        first = f"{now}|{self._known.seq}|{self._known.mark}"
        call = (len(keys), *keys, first, *arguments)
        try:
            try:
                return await self._bounded(self._redis.evalsha(script.sha, *call), operation=script.name)
            except redis_errors.NoScriptError:  # a new server learns the script by running it
                return await self._bounded(self._redis.eval(script.text, *call), operation=script.name)
        except redis_errors.ResponseError as error:
            if not str(error).startswith(REGRESSED):
                raise
            raise RegistryRegressedError(
                f"Redis has lost changes that this worker knows (up to {self._known.seq}) and is not "
                "written to until an operator decides. See florin registry show."
            ) from error

    async def _bounded(self, reply: object, timeout: float | None = None, operation: str = "read") -> Any:
        began = perf_counter()
        try:
            return await bounded(reply, timeout or self._timeout)
        finally:
            self.observe(operation, perf_counter() - began)


def _check(fence: Fence | None, holds: object) -> None:
    if fence and not holds:
        raise FencedError(f"Another worker holds the role {fence.role} now; nothing was changed.")


def _told(note: AuditNote) -> str:
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
