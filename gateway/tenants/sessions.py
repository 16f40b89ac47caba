"""Who is signed in: sessions in the shared state, so that every worker and gateway knows them.

A browser holds a random secret in a cookie, the store its SHA-256. A session acts as the key that began it:
what that key may do is looked up on each request, so a revoked key's sessions end with it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.sessions import SessionStore
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, as_json, load

LINK_SECONDS: Final = 600.0
"""How long a sign-in link works."""
_FRESH_SECONDS: Final = 5.0
"""How long a worker trusts what it read: a session that ended elsewhere works here for so long."""
_STALE_SECONDS: Final = 300.0
"""The same while the store cannot be reached."""
_MOST: Final = 1_000
"""Sessions that a worker remembers."""
_BEGUN_SECONDS: Final = 600.0
_BEGUN_MOST: Final = 200
"""Sessions and links that one tenant, or one key of the staff, may begin in that time at each worker: each
stays in the store until it ends."""


@dataclass(frozen=True, slots=True)
class Session:
    digest: str
    """The digest of its secret; the key of its document in the store."""
    key_id: str
    """The key that it acts as; empty if `person` is it."""
    csrf: str
    expires: int
    """Unix microseconds."""
    person: Key | None = None
    """A key that is not in the registry: that of somebody whom an identity provider vouches for."""
    key_digest: str = ""
    """The digest of the key that it acts as, since the bootstrap key keeps its id when it is replaced. Empty
    if an older Florin began the session."""


class Sessions:
    """One per worker, on its event loop. Mutable: what it remembers of the store."""

    def __init__(
        self,
        store: SessionStore,
        directory: Directory,
        *,
        lifetime: float,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lifetime`: seconds. `clock`: Unix microseconds."""
        self._store = store
        self._directory = directory
        self._lifetime = lifetime
        self._clock = clock
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Session | None]] = {}
        self._begun: dict[str, deque[float]] = {}

    async def begin(self, key: Key, *, expires: int | None = None) -> tuple[str, Session]:
        """The secret for the cookie, and the session. `expires`: when the identity provider's token expires,
        Unix microseconds. Raises FlorinError if its owner has begun too many, StoreUnavailableError."""
        self._admit(key)
        seconds = self._lifetime
        now = self._clock()
        for limit in (expires, key.expires):
            if limit is not None:
                seconds = min(seconds, max(1.0, (limit - now) / 1e6))
        secret = secrets.token_urlsafe(32)
        stored = key.id == "bootstrap" or key.id in self._directory.keys
        session = Session(
            _digest(secret),
            key.id if stored else "",
            secrets.token_urlsafe(24),
            now + int(seconds * 1e6),
            None if stored else key,
            key.digest if stored else "",
        )
        await self._store.put_session(session.digest, _dump(session), ttl_ms=int(seconds * 1000))
        self._remember(session.digest, session)
        return secret, session

    async def find(self, secret: str) -> Session | None:
        """None: it has ended. Raises StoreUnavailableError if that cannot be known."""
        return await self._find(_digest(secret))

    async def still(self, session: Session) -> bool:
        """Whether it has not ended, nor its key. Raises StoreUnavailableError."""
        stored = await self._find(session.digest)
        key = self.key_of(stored) if stored else None
        return key is not None and key.revoked is None and not self._directory.expired(key)

    async def _find(self, digest: str) -> Session | None:
        read, session = self._known.get(digest, (-_STALE_SECONDS, None))
        age = self._monotonic() - read
        if age > _FRESH_SECONDS:
            try:
                text = await self._store.session(digest)
                session = None if text is None else _load(digest, text)
                self._remember(digest, session)
            except StoreUnavailableError:
                if age > _STALE_SECONDS:
                    raise
        return session if session is not None and session.expires > self._clock() else None

    async def end(self, session: Session) -> None:
        """Raises StoreUnavailableError."""
        self._known.pop(session.digest, None)
        await self._store.take_session(session.digest)

    def key_of(self, session: Session) -> Key | None:
        """The key as it is now, which may have been revoked; None: it is gone."""
        return session.person or self._unchanged(session.key_id, session.key_digest)

    async def link(self, key: Key) -> tuple[str, int]:
        """The secret of a link that signs in once, as this key, and when it expires, Unix microseconds.
        Raises FlorinError if the key's owner has begun too many, StoreUnavailableError."""
        self._admit(key)
        secret = secrets.token_urlsafe(32)
        stored = key.id == "bootstrap" or key.id in self._directory.keys
        text = orjson.dumps(
            {"key": key.id, "digest": key.digest, "person": None if stored else as_json(key)}
        ).decode()
        expires = self._clock() + int(LINK_SECONDS * 1e6)
        await self._store.put_session(_digest("link " + secret), text, ttl_ms=int(LINK_SECONDS * 1000))
        return secret, expires

    async def follow(self, secret: str) -> Key | None:
        """The key of a link, which works once. None: used, expired, or never made. Raises
        StoreUnavailableError."""
        text = await self._store.take_session(_digest("link " + secret))
        if text is None:
            return None
        link = orjson.loads(text)
        return _key(link["person"]) or self._unchanged(link["key"], link.get("digest", ""))

    def _unchanged(self, key_id: str, key_digest: str) -> Key | None:
        key = self._directory.by_id(key_id)
        return key if key is not None and key_digest in ("", key.digest) else None

    def _admit(self, key: Key) -> None:
        owner, now = key.own_tenant or f"key {key.id}", self._monotonic()
        for known in [name for name, begun in self._begun.items() if begun[-1] <= now - _BEGUN_SECONDS]:
            del self._begun[known]
        begun = self._begun.setdefault(owner, deque(maxlen=_BEGUN_MOST))
        if len(begun) == _BEGUN_MOST and begun[0] > now - _BEGUN_SECONDS:
            wait = int(begun[0] + _BEGUN_SECONDS - now) + 1
            message = f"Signed in {_BEGUN_MOST} times in {_BEGUN_SECONDS / 60:.0f} minutes."
            raise FlorinError("rate_limit_exceeded", message, retry_after=wait)
        begun.append(now)

    def _remember(self, digest: str, session: Session | None) -> None:
        self._known.pop(digest, None)
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[digest] = (self._monotonic(), session)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(document: Any) -> Key | None:
    return None if document is None else load(Key, orjson.dumps(document).decode())


def _dump(session: Session) -> str:
    person = None if session.person is None else as_json(session.person)
    return orjson.dumps(
        {
            "key": session.key_id,
            "digest": session.key_digest,
            "csrf": session.csrf,
            "expires": session.expires,
            "person": person,
        }
    ).decode()


def _load(digest: str, text: str) -> Session:
    document = orjson.loads(text)
    return Session(
        digest,
        document["key"],
        document["csrf"],
        document["expires"],
        _key(document["person"]),
        document.get("digest", ""),
    )
