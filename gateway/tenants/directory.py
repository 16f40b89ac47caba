"""Tenants and API keys as this process last heard them, and the authentication of requests.

A key is `fl_<id>_<secret>`. Only its SHA-256 is kept: the secret has 192 random bits, so a slow password
hash would add delay to every request and nothing to its safety.

An enrolment token is a key, too: of role `enrolment`, valid for a while, and revoked by its first use.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pydantic import TypeAdapter

from adapters.store.protocol import Event
from gateway.runtime.clock import system_time


class Role(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"
    FINANCE = "finance"
    ENGINE = "engine"
    """One engine's host: registers that engine, says that it lives, and fetches the files placed on it."""
    METRICS = "metrics"
    """Reads /metrics, and nothing else."""
    ENROLMENT = "enrolment"
    """A token, not a key to work with: exchanged once for a key of role engine."""


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    base_access: bool
    """May call the base model itself."""
    created: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What the host of an engine may not say otherwise, because money and traffic follow it. An operator pins
    it with the token; what is left None there is pinned by the key's first registration."""

    base: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    region: str | None = None
    purchase: str | None = None
    address: str | None = None
    """Host name or IP address of the engine's and the agent's URLs. None: the address that the agent
    connects from."""


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    tenant: str
    """Empty for a key that belongs to no tenant."""
    role: Role
    digest: str
    created: int
    """Unix microseconds, UTC, like the other times."""
    revoked: int | None = None
    engine: str = ""
    """The one engine that a key of role engine, or an enrolment token, is for."""
    pins: Pins = Pins()
    expires: int | None = None
    """From then on it is refused; None: never."""


D = TypeVar("D", Tenant, Key)
_codecs: dict[type[Tenant | Key], TypeAdapter[Tenant] | TypeAdapter[Key]] = {
    Tenant: TypeAdapter(Tenant),
    Key: TypeAdapter(Key),
}


def dump(document: Tenant | Key) -> str:
    codec: TypeAdapter[Tenant | Key] = _codecs[type(document)]  # type: ignore[assignment]  # the table's invariant
    return codec.dump_json(document).decode()


def load(kind: type[D], text: str) -> D:
    return _codecs[kind].validate_json(text)  # type: ignore[return-value]  # the table's invariant


def digest(key: str | bytes) -> str:
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


def mint(
    tenant: str, role: Role, now: int, *, engine: str = "", pins: Pins = Pins(), expires: int | None = None
) -> tuple[Key, str]:
    """A new key and its text, which is shown once and kept nowhere."""
    key_id = secrets.token_hex(6)
    prefix = "flt" if role is Role.ENROLMENT else "fl"
    text = f"{prefix}_{key_id}_{secrets.token_urlsafe(24)}"
    key = Key(key_id, tenant, role, digest(text), now, engine=engine, pins=pins, expires=expires)
    return key, text


class Directory:
    """A view of tenants and keys, fed by `adapters.store.feed`."""

    def __init__(self, operator_key: str = "", clock: Callable[[], int] = system_time) -> None:
        """`clock`: Unix microseconds, by which keys expire."""
        self._clock = clock
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[str, Key] = {}
        self._by_digest: dict[str, Key] = {}
        self._bootstrap = (
            Key("bootstrap", "", Role.OPERATOR, digest(operator_key), 0) if operator_key else None
        )
        self._index()

    def __repr__(self) -> str:
        return f"<Directory {len(self.tenants)} tenants, {len(self.keys)} keys>"

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        self.tenants = {i: load(Tenant, d) for i, d in documents.get("tenant", {}).items()}
        self.keys = {i: load(Key, d) for i, d in documents.get("key", {}).items()}
        self._index()

    def apply(self, event: Event) -> None:
        if event.kind == "tenant":
            if event.data is None:
                self.tenants.pop(event.id, None)
            else:
                self.tenants[event.id] = load(Tenant, event.data)
        elif event.kind == "key":
            old = self.keys.pop(event.id, None)
            if old:
                self._by_digest.pop(old.digest, None)
            if event.data is not None:
                key = load(Key, event.data)
                self.keys[event.id] = self._by_digest[key.digest] = key

    def _index(self) -> None:
        self._by_digest = {k.digest: k for k in self.keys.values()}
        if self._bootstrap:
            self._by_digest[self._bootstrap.digest] = self._bootstrap

    def document(self, tenant: str) -> str | None:
        """The tenant as stored, for a commit that expects it to be there."""
        found = self.tenants.get(tenant)
        return dump(found) if found else None

    def find(self, text: bytes) -> Key | None:
        """The key whose text this is, revoked ones included. The look-up is by hash, so its timing tells
        nothing about the keys."""
        return self._by_digest.get(hashlib.sha256(text).hexdigest())

    def expired(self, key: Key) -> bool:
        return key.expires is not None and key.expires <= self._clock()

    def knows(self, key_digest: str) -> bool:
        """Whether some key, the bootstrap key included, has this digest."""
        return key_digest in self._by_digest
