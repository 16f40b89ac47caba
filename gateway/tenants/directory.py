"""This process's snapshot of tenants and API keys, used to authenticate requests.

A key is `fl_<id>_<secret>`. Only its SHA-256 is stored: the secret has 192 random bits, so a slow password
hash would delay every request without adding security.

An enrolment token is also a key: it has role `enrolment`, expires, and is revoked by its first use.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter

from adapters.placement.requirements import NO_LABELS, combined
from adapters.store.protocol.registry import Event
from gateway.runtime.clock import system_time
from gateway.tenants.failed_keys import FailedKeys
from gateway.tenants.terms import (
    ALL_SCOPES,
    DEFAULT_POLICY,
    NO_BUDGET,
    NO_LIMITS,
    NO_QUOTAS,
    Budget,
    Limits,
    Priority,
    Quotas,
    RequestPolicy,
    Scopes,
)


class Role(StrEnum):
    TENANT = "tenant"
    TENANT_ADMIN = "tenant-admin"
    """A customer's own administrator: registers and changes its own tenant's adapters and keys."""
    OPERATOR = "operator"
    FINANCE = "finance"
    AUDITOR = "auditor"
    """Reads the books and the audit log, and changes nothing."""
    ENGINE = "engine"
    """The host of one engine: registers it, sends its heartbeats, and fetches the files placed on it."""
    METRICS = "metrics"
    """May only read /metrics."""
    CONTROLLER = "controller"
    """`florin controller`: applies and removes tenants and adapters, and lists engines."""
    ENROLMENT = "enrolment"
    """A token that can only be exchanged, once, for a key of role engine."""


TENANT_ROLES = frozenset({Role.TENANT, Role.TENANT_ADMIN})
"""Roles whose keys belong to a tenant and see nothing of the others."""
CONSOLE_ROLES = frozenset({Role.OPERATOR, Role.FINANCE, Role.AUDITOR, *TENANT_ROLES})
"""The roles that have a console."""
PERSON = ("oidc:", "oidc@")
"""Begin the ids of keys that stand for people who signed in: `oidc:NAME`, and `oidc@TENANT:NAME` for those of
a tenant. No stored key's id has a colon."""
HOST = "host:"
"""Begins the id of an enrolment token, or of the controller's key, that a host's platform signed. No stored
key's id has a colon."""
EVALUATION = "evaluation:"
"""Begins the id of the key under which an operator's evaluation of a tenant's adapter runs. No stored key's
id has a colon."""
KEY_ROLES = frozenset(Role) - {Role.ENROLMENT}
"""All but that of enrolment tokens."""


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    base_access: bool
    """May call the base model without an adapter."""
    created: int
    """Unix microseconds, UTC."""
    requires: dict[str, str] = field(default_factory=dict)
    """Labels that an engine must have to hold its adapters and to serve its requests."""
    limits: Limits = NO_LIMITS
    budget: Budget = NO_BUDGET
    weight: float = 1.0
    """Its share of a busy fleet, relative to the other tenants' weights."""
    quotas: Quotas = NO_QUOTAS
    policy: RequestPolicy = DEFAULT_POLICY
    cost_centre: str = ""
    """Label of its usage in reports, where neither key nor adapter has one."""
    cache_group: str = ""
    """Tenants of one group share the engines' prefix caches; empty: it shares them with nobody."""
    prepaid: bool = False
    """Its requests are refused once its prepaid credits are used up."""
    timezone: str = "UTC"
    """In which the periods of its limits begin."""
    organization: str = ""
    """The tenant whose limits of level `organization` apply to its requests, too."""
    suspended: int | None = None
    """Since when its requests are refused, Unix microseconds, UTC; None: they are served."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Facts about an engine that its host cannot change, since they determine cost and traffic. An operator
    pins them with the token; the key's first registration pins the ones left None."""

    base: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    region: str | None = None
    purchase: str | None = None
    address: str | None = None
    """Host name or IP address in the URLs of the engine and the agent. None: the address from which the
    agent connects."""
    labels: dict[str, str] | None = None
    serves: str | None = None
    """Id of the version that is merged into its weights; empty: none is."""
    tenant: str | None = None
    """The only tenant that the engine serves; empty: it serves all. Registrations do not pin it: None leaves
    it as an operator has set it."""


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
    """The engine of an engine key or enrolment token."""
    pins: Pins = Pins()
    expires: int | None = None
    """None: never."""
    label: str = ""
    """What it is for, in its owner's words."""
    scopes: Scopes = ALL_SCOPES
    limits: Limits = NO_LIMITS
    budget: Budget = NO_BUDGET
    priority: Priority = Priority.NORMAL
    replaced_by: str = ""
    """Id of the key to which it was rotated."""
    cost_centre: str = ""
    """Label of its usage in reports; goes before that of the adapter and of the tenant."""

    def valid(self, now: int) -> bool:
        """Neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or self.expires > now)

    @property
    def evaluates(self) -> bool:
        """Whether it is that of an operator's evaluation: it may call the base model, to compare with it."""
        return self.id.startswith(EVALUATION)

    @property
    def is_person(self) -> bool:
        """Whether it stands for a person who signed in, and is in no registry."""
        return self.id.startswith(PERSON)

    @property
    def is_stored(self) -> bool:
        """Whether it is in the registry: people and hosts' tokens of other issuers are not."""
        return ":" not in self.id

    @property
    def own_tenant(self) -> str | None:
        """The only tenant that the key may see; None: it sees all, as far as its role goes."""
        return self.tenant if self.role in TENANT_ROLES else None


D = TypeVar("D", Tenant, Key)
_codecs: dict[type[Tenant | Key], TypeAdapter[Tenant] | TypeAdapter[Key]] = {
    Tenant: TypeAdapter(Tenant),
    Key: TypeAdapter(Key),
}


def dump(document: Tenant | Key) -> str:
    codec: TypeAdapter[Tenant | Key] = _codecs[type(document)]  # type: ignore[assignment]  # the table's invariant
    return codec.dump_json(document, exclude_defaults=True).decode()


def as_json(document: Tenant | Key) -> dict[str, Any]:
    """Every field, in types of JSON: amounts of money are strings."""
    codec: TypeAdapter[Tenant | Key] = _codecs[type(document)]  # type: ignore[assignment]  # as above
    return codec.dump_python(document, mode="json")  # type: ignore[no-any-return]  # a document is a dict


def load(kind: type[D], text: str) -> D:
    return _codecs[kind].validate_json(text)  # type: ignore[return-value]  # the table's invariant


def digest(key: str | bytes) -> str:
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


def mint(
    tenant: str, role: Role, now: int, *, engine: str = "", pins: Pins = Pins(), expires: int | None = None
) -> tuple[Key, str]:
    """A new key and its text, which is shown once and never stored."""
    key_id = secrets.token_hex(6)
    prefix = "flt" if role is Role.ENROLMENT else "fl"
    text = f"{prefix}_{key_id}_{secrets.token_urlsafe(24)}"
    key = Key(key_id, tenant, role, digest(text), now, engine=engine, pins=pins, expires=expires)
    return key, text


def evaluation_key_id(tenant: Tenant) -> str:
    """Also identified by when the tenant was added: a later tenant of the same name is another one."""
    return f"{EVALUATION}{tenant.name}:{tenant.created}"


class Directory:
    """A snapshot of tenants and keys, kept current by `adapters.store.feed` through `load` and `apply`.

    Only the feed changes it; everybody else reads. It holds every key, also revoked and expired ones, so that
    authentication can name the reason and needs no round trip to Redis. The bootstrap key is found like any
    other but is not in `keys`. Used on the worker's event loop only.
    """

    def __init__(self, operator_key: str = "", clock: Callable[[], int] = system_time) -> None:
        """`clock`: Unix microseconds, for the expiry of keys."""
        self._clock = clock
        self.generation = 0
        """Counts changes."""
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[str, Key] = {}
        self._by_digest: dict[str, Key] = {}
        self._bootstrap: Key | None = None
        self.bootstrap_length = 0
        """Characters of the bootstrap key; 0: there is none."""
        self.failed_keys = FailedKeys(clock=clock)
        if operator_key:
            self.set_operator_key(operator_key)

    def __repr__(self) -> str:
        return f"<Directory {len(self.tenants)} tenants, {len(self.keys)} keys>"

    def set_operator_key(self, operator_key: str) -> None:
        """Replace the bootstrap key; the one before is unknown from now on."""
        self._bootstrap = Key("bootstrap", "", Role.OPERATOR, digest(operator_key), 0)
        self.bootstrap_length = len(operator_key)
        self._index()

    def is_operator_key(self, text: str) -> bool:
        """Whether it is the bootstrap key."""
        return self._bootstrap is not None and self._bootstrap.digest == digest(text)

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        self.tenants = {i: load(Tenant, d) for i, d in documents.get("tenant", {}).items()}
        self.keys = {i: load(Key, d) for i, d in documents.get("key", {}).items()}
        self._index()

    def apply(self, event: Event) -> None:
        if event.kind in {"tenant", "key"}:
            self.generation += 1
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
        self.generation += 1
        self._by_digest = {k.digest: k for k in self.keys.values()}
        if self._bootstrap:
            self._by_digest[self._bootstrap.digest] = self._bootstrap

    def document(self, tenant: str) -> str | None:
        """The tenant as stored, for a commit that requires it to be unchanged."""
        record = self.tenants.get(tenant)
        return dump(record) if record else None

    def find(self, text: bytes) -> Key | None:
        """The key with this text, even if revoked or expired. The lookup is by hash, so its timing reveals
        nothing about the keys."""
        return self._by_digest.get(hashlib.sha256(text).hexdigest())

    def by_id(self, key_id: str) -> Key | None:
        """The key with this id, even if revoked or expired."""
        if self._bootstrap is not None and key_id == self._bootstrap.id:
            return self._bootstrap
        return self.keys.get(key_id)

    def batch_key(self, key_id: str) -> Key | None:
        """The key under which a batch runs: its creator's, or that of a tenant's evaluation, which exists as
        long as the tenant does."""
        known = self.keys.get(key_id)
        if known is not None or not key_id.startswith(EVALUATION):
            return known
        tenant = self.tenants.get(key_id.split(":")[1])
        if tenant is None or evaluation_key_id(tenant) != key_id:
            return None
        return Key(key_id, tenant.name, Role.TENANT, "", tenant.created)

    def requires(self, caller: str, owner: str = "") -> Mapping[str, str]:
        """Labels that an engine must have to serve the caller's requests; with `owner`, requests to that
        tenant's adapter."""
        labels = self._requires(caller)
        return labels if owner in ("", caller) else combined(labels, self._requires(owner))

    def _requires(self, tenant: str) -> Mapping[str, str]:
        record = self.tenants.get(tenant)
        return record.requires if record else NO_LABELS

    def cost_centre(self, key: Key, adapter: str) -> str | None:
        """The cost centre of a request: that of its key, else `adapter`, that of the tenant's own adapter,
        else that of the tenant. None: none of them has one."""
        if key.cost_centre or adapter:
            return key.cost_centre or adapter
        known = self.tenants.get(key.tenant)
        return (known.cost_centre or None) if known else None

    def organization(self, tenant: Tenant) -> Tenant | None:
        """The tenant whose limits of level `organization` count this one's requests, too."""
        return self.tenants.get(tenant.organization or tenant.name)

    def members(self, organization: str) -> list[Tenant]:
        """The tenants of an organization, itself included."""
        return [t for t in self.tenants.values() if organization in (t.name, t.organization)]

    def suspended(self, tenant: str) -> bool:
        record = self.tenants.get(tenant)
        return record is not None and record.suspended is not None

    def expired(self, key: Key) -> bool:
        return key.expires is not None and key.expires <= self._clock()

    def knows(self, key_digest: str) -> bool:
        """Whether a key, or the bootstrap key, has this digest."""
        return key_digest in self._by_digest
