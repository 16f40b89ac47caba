"""Reads the durable part of the registry for a backup, and writes it to a server that holds none.

Durable: documents, secrets, audit entries that the ledger may not have yet, and the last use of keys. Not
durable: leases, limits, heartbeats, and what engines are asked for anyway (`continuity.PASSING`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions as redis_errors

from adapters.errors import ConflictError
from adapters.store.continuity import PASSING, Position
from adapters.store.protocol.registry import DOCUMENT_KINDS, AuditNote, dump_note
from adapters.store.redis.connection import unavailable
from adapters.store.redis.epochs import POSITION_REPLIES, Keys, ask_position, position_of, write_epoch
from adapters.store.redis.server import RedisServer

KINDS: Final = tuple(kind for kind in DOCUMENT_KINDS if kind not in PASSING)
SECRETS: Final = ("agent", "installation", "cache_salt")
_SECONDS: Final = 60.0
"""For the whole registry, read or written at once."""


@dataclass(frozen=True, slots=True)
class RegistryContents:
    position: Position
    documents: dict[str, dict[str, str]]
    """Each of KINDS → id → JSON text."""
    secrets: dict[str, str]
    audit: list[tuple[str, str]]
    """(id, JSON of AuditNote), oldest first."""
    last_use: dict[str, int]
    """Key's id → Unix microseconds."""


class RegistryBackup(RedisServer):
    """Raises StoreUnavailableError."""

    async def close(self) -> None:
        await self._redis.aclose()

    async def read(self) -> RegistryContents:
        """Everything as of one moment."""
        async with self._redis.pipeline(transaction=True) as pipe:
            ask_position(pipe, Keys(self._key), Position())
            for kind in KINDS:
                pipe.hgetall(self._key("doc", kind))
            for name in SECRETS:
                pipe.get(self._key("secret", name))
            pipe.xrange(self._key("audit"))
            pipe.zrange(self._key("last_use"), 0, -1, withscores=True)
            replies = await self._bounded(pipe.execute(), _SECONDS, operation="snapshot")
        position_replies, rest = replies[:POSITION_REPLIES], replies[POSITION_REPLIES:]
        documents, secrets = rest[: len(KINDS)], rest[len(KINDS) : -2]
        audit, last_use = rest[-2:]
        return RegistryContents(
            position_of(position_replies, Position())[0],
            dict(zip(KINDS, documents, strict=True)),
            {name: text for name, text in zip(SECRETS, secrets, strict=True) if text},
            [(id_, fields["note"]) for id_, fields in audit],
            {id_: int(used_at) for id_, used_at in last_use},
        )

    async def holds(self) -> bool:
        """Whether the server holds a registry, or a gateway has used it."""
        return bool(await self._bounded(self._redis.exists(*self._durable)))

    async def write(self, contents: RegistryContents, begun: Position, *, note: AuditNote) -> None:
        """Write everything at once, at the position `begun`. Raises ConflictError if the server holds a
        registry."""
        taken = ConflictError("Redis already holds a registry.")
        keys = Keys(self._key)
        async with self._redis.pipeline(transaction=True) as pipe:
            with unavailable():
                await pipe.watch(*self._durable)
            if await self.holds():
                raise taken
            pipe.multi()  # type: ignore[no-untyped-call]  # redis-py's
            for kind, texts in contents.documents.items():
                if texts:
                    pipe.hset(self._key("doc", kind), mapping=dict[Any, Any](texts))
            for name, secret in contents.secrets.items():
                pipe.set(self._key("secret", name), secret)
            for id_, text in contents.audit:
                pipe.xadd(self._key("audit"), {"note": text}, id=id_)
            if contents.last_use:
                pipe.zadd(self._key("last_use"), dict[Any, Any](contents.last_use))
            write_epoch(pipe, keys, Position(), begun)
            pipe.xadd(self._key("audit"), {"note": dump_note(note)})
            try:
                await self._bounded(pipe.execute(), _SECONDS)
            except redis_errors.WatchError:
                raise taken from None

    @property
    def _durable(self) -> list[str]:
        named = [self._key(name) for name in ("feed", "epoch", "audit", "placement")]
        documents = [self._key("doc", kind) for kind in DOCUMENT_KINDS]
        return [*named, *documents, *(self._key("secret", name) for name in SECRETS)]
