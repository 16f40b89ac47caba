"""The store over Redis or Valkey. What must be atomic is a Lua script in `lua/`; the rest is single commands.

Keys, all with the hash tag of the installation, so that they share one slot of a Redis Cluster:

    {florin}:doc:<kind>         hash    id → JSON
    {florin}:feed               stream  <seq>-0 → kind, id, data (absent: deleted)
    {florin}:placement          hash    engine/version → JSON of model.Placement
    {florin}:until              hash    engine/version → ms at which `loading` or `leaving` lapses
    {florin}:where              hash    version → engines that have it assigned
    {florin}:recency:<engine>   zset    version → ms of last use; being a member is having a slot
    {florin}:leases:<engine>    hash    version|worker → ms at which the lease lapses
    {florin}:role:<name>        string  deadline and holder
    {florin}:secret:<name>      string

Times are the server's own, so the workers' clocks do not matter.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from adapters.errors import ConflictError, StoreUnavailableError
from adapters.store import (
    DOCUMENT_KINDS,
    Change,
    Claim,
    ClaimResult,
    Event,
    GapError,
    Snapshot,
    Touch,
    check_kinds,
    with_time_left,
)

LUA: Final = Path(__file__).parent / "lua"
BATCH: Final = 1000
"""Events per read of the feed."""
QUIET_MS: Final = 900
"""How long a read of the feed waits for an event: the protocol promises a batch at least once a second."""
CONNECTIONS: Final = 32
"""Per store; more callers than that wait for one."""

Clock = Callable[[], int]


class _Script:
    """One Lua file with what it needs in front of it."""

    def __init__(self, *names: str) -> None:
        self.text = "\n".join((LUA / f"{name}.lua").read_text() for name in ("prelude", *names))
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """`adapters.store.Store` over one Redis or Valkey server (or the primary behind a service name).

    `url`: redis://, rediss:// or unix://. Nothing connects before the first call. `timeout`: seconds
    for any call but a snapshot, connecting included. `clock`: ms, instead of the server's time; for tests.
    """

    def __init__(
        self, url: str, *, prefix: str = "florin", clock: Clock | None = None, timeout: float = 2.0
    ) -> None:
        self._url = url
        self._tag = f"{{{prefix}}}"
        self._clock = clock
        self._timeout = timeout
        self._redis = _client(url, timeout, CONNECTIONS)
        self._commit = _Script("commit")
        self._claim = _Script("placement", "claim")
        self._confirm = _Script("placement", "confirm")
        self._abandon = _Script("placement", "abandon")
        self._unplace = _Script("placement", "unplace")
        self._touch = _Script("touch")
        self._lead = _Script("lead")

    def __repr__(self) -> str:
        return f"<RedisStore {self._tag} at {_without_password(self._url)}>"

    # -- documents and their feed ---------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xrevrange(self._key("feed"), count=1)
            pipe.time()
            pipe.hgetall(self._key("until"))
            pipe.hgetall(self._key("placement"))
            for kind in DOCUMENT_KINDS:
                pipe.hgetall(self._key("doc", kind))
            replies = await self._bounded(pipe.execute(), self._timeout * 5)
        tail, time, until, placement, *documents = replies
        now = self._ms(time)
        snapshot = dict(zip(DOCUMENT_KINDS, documents, strict=True))
        snapshot["placement"] = {
            id_: with_time_left(text, int(until[id_]) - now) if id_ in until else text
            for id_, text in placement.items()
        }
        return Snapshot(seq=_seq(tail[0][0]) if tail else 0, documents=snapshot)

    async def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        feed = self._key("feed")
        redis = _client(self._url, self._timeout, 1)  # its own connection: its reads block
        try:
            while True:
                entries = await self._bounded(redis.xread({feed: f"{after}-0"}, count=BATCH, block=QUIET_MS))
                if not entries and await self._tail(redis) < after:
                    raise GapError(f"the feed ends before event {after}: the server has lost data")
                events = [_event(entry) for entry in entries[0][1]] if entries else []
                for event in events:
                    after += 1
                    if event.seq != after:
                        raise GapError(f"event {after} is gone: the feed goes on with {event.seq}")
                yield events
        finally:
            await redis.aclose()

    async def commit(self, changes: Sequence[Change]) -> int:
        check_kinds(changes)
        keys = [self._key("feed"), *(self._key("doc", c.kind) for c in changes)]
        done, number = await self._run(self._commit, keys, [part for c in changes for part in _arguments(c)])
        if not done:
            change = changes[number - 1]
            raise ConflictError(f"{change.kind} {change.id} was changed by somebody else meanwhile.")
        return int(number)

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

    async def unplace(self, engine: str, version: str | None = None) -> None:
        await self._run(self._unplace, self._placement_keys(engine), [engine, version or ""])

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
            if int(deadline) > now:
                version = lease.partition("|")[0]
                live[version] = live.get(version, 0) + 1
        return live

    # -- roles and secrets ----------------------------------------------------------------------------

    async def lead(self, role: str, owner: str, ttl_ms: int) -> bool:
        keys = [self._key("feed"), self._key("role", role)]
        return bool(await self._run(self._lead, keys, [owner, ttl_ms]))

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        key = self._key("secret", name)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.setnx(key, fresh)
            pipe.get(key)
            _, secret = await self._bounded(pipe.execute())
        return str(secret)

    async def close(self) -> None:
        await self._redis.aclose()

    # -- how to ask the server ------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return ":".join((self._tag, *parts))

    def _engine_keys(self, engine: str) -> list[str]:
        return [self._key("recency", engine), self._key("leases", engine)]

    def _placement_keys(self, engine: str) -> list[str]:
        return [*map(self._key, ("feed", "placement", "until", "where")), *self._engine_keys(engine)]

    def _ms(self, time: tuple[int, int]) -> int:
        return self._clock() if self._clock else time[0] * 1000 + time[1] // 1000

    async def _tail(self, redis: Redis) -> int:
        last = await self._bounded(redis.xrevrange(self._key("feed"), count=1))
        return _seq(last[0][0]) if last else 0

    async def _run(self, script: _Script, keys: list[str], arguments: list[Any]) -> Any:
        now = self._clock() if self._clock else ""
        call = (len(keys), *keys, now, *arguments)
        try:
            return await self._bounded(self._redis.evalsha(script.sha, *call))
        except redis_errors.NoScriptError:  # the server is new: it learns the script by running it
            return await self._bounded(self._redis.eval(script.text, *call))

    async def _bounded(self, reply: object, timeout: float | None = None) -> Any:
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        with _unavailable():
            async with asyncio.timeout(timeout or self._timeout):
                result = await cast("Awaitable[Any]", reply)  # redis-py types both its clients at once
        if task.cancelling() > cancelled:  # Python 3.11's wait_for, in redis-py, can swallow it
            raise asyncio.CancelledError
        return result


def _client(url: str, timeout: float, connections: int) -> Redis:
    """Never retries by itself: whether a script ran before its connection broke cannot be known."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        protocol=2,
    )
    return Redis.from_pool(pool)


UNFIT = ("MISCONF", "NOREPLICAS", "BUSY ", "OOM ", "NOPERM", "NOAUTH")
"""Beginnings of a server's refusals that are about its condition, not about the command."""


@contextmanager
def _unavailable() -> Iterator[None]:
    """Whatever keeps the server from answering becomes StoreUnavailableError."""
    try:
        yield
    except (TimeoutError, redis_errors.TimeoutError) as error:
        raise StoreUnavailableError("Redis does not answer in time.") from error
    except redis_errors.BusyLoadingError as error:
        raise StoreUnavailableError("Redis is starting: it still loads its data.") from error
    except redis_errors.ReadOnlyError as error:
        raise StoreUnavailableError("Redis is a read-only replica: name its primary.") from error
    except (redis_errors.ConnectionError, redis_errors.ClusterError, OSError) as error:
        raise StoreUnavailableError(f"Redis cannot be reached: {error}") from error
    except redis_errors.ResponseError as error:
        if str(error).startswith(UNFIT) or isinstance(error, redis_errors.OutOfMemoryError):
            raise StoreUnavailableError(f"Redis refuses to work: {error}") from error
        raise


def _arguments(change: Change) -> tuple[str, str, str, str, str, str]:
    operation = "-" if change.data is None else "+"
    expectation = "?" if change.expect == "any" else "-" if change.expect is None else "="
    return change.kind, change.id, operation, change.data or "", expectation, change.expect or ""


def _seq(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def _event(entry: tuple[str, dict[str, str]]) -> Event:
    entry_id, fields = entry
    return Event(seq=_seq(entry_id), kind=fields["kind"], id=fields["id"], data=fields.get("data"))


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
