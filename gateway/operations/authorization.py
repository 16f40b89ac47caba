"""Who may do what: by role, by the tenant that a key belongs to, and by the engine that it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from adapters.errors import AdaptersError, NotFoundError
from adapters.model import AdapterName
from gateway.costs.periods import iso
from gateway.errors import FlorinError, for_tenant, translate
from gateway.tenants.directory import Key, Role
from gateway.tenants.scopes import covers
from gateway.units import DAY

PERSONS_KEYS: Final = 365 * DAY
"""Microseconds by which the keys of somebody who signed in may outlive that sign-in, which lasts hours."""


@dataclass(frozen=True, slots=True)
class Authority:
    """On whose authority an operation acts: an operator's, or that of a tenant's own administrator, who
    reaches nothing but that tenant's objects.

    Its checks look at names only, before anything is looked up. So another tenant's object and one that does
    not exist get the same answer, in the same time.
    """

    actor: str
    """For the audit."""
    key: Key | None = None
    """The key of a tenant's administrator; None: an operator's authority."""
    ends: int | None = None
    """When the keys that it makes must have expired: no key outlives its maker. None: never."""

    @classmethod
    def of(cls, key: Key) -> Self:
        ends = key.expires
        if ends is not None and key.is_person:
            ends += PERSONS_KEYS
        return cls(actor_of(key), None if key.own_tenant is None else key, ends)

    @property
    def tenant(self) -> str | None:
        """The tenant that it is confined to; None: none."""
        return None if self.key is None else self.key.own_tenant

    def sees(self, name: str) -> bool:
        """Whether it reaches the adapter of this full name, if there is one."""
        if self.key is None:
            return True
        return name.startswith(f"{self.key.tenant}/") and covers(self.key, name)

    def sees_key(self, key: Key) -> bool:
        return self.tenant in (None, key.own_tenant)

    def check_adapter(self, name: AdapterName) -> None:
        """Raises NotFoundError unless it reaches adapters of this name."""
        if not self.sees(str(name)):
            raise no_adapter(name)

    def check_tenant(self, tenant: str) -> None:
        """Raises NotFoundError for a tenant that it does not reach."""
        if self.tenant not in (None, tenant):
            raise NotFoundError(f"There is no tenant {tenant[:80]!r}.")

    def check_vouching(self, *, unverified_shapes: bool) -> None:
        """Raises FlorinError for what only an operator may vouch for, because the operator's engines have to
        serve it."""
        if unverified_shapes and self.tenant is not None:
            raise FlorinError(
                "insufficient_role",
                "Only an operator can register an adapter with unverified shapes.",
                param="unverified_shapes",
            )

    def lifetime(self, until: int | None, *, given: bool) -> int | None:
        """When a key expires that is to expire at `until`; None: never. `given`: otherwise it inherits the
        end. Raises FlorinError."""
        if self.ends is None or (until is not None and until <= self.ends):
            return until
        if given:
            raise FlorinError(
                "insufficient_scope",
                f"expires: at most {iso(self.ends)}, as for your own key.",
                param="expires",
            )
        return self.ends

    def check_change(self) -> None:
        """Raises FlorinError for a key that may only read."""
        if self.key is not None and self.key.scopes.read_only:
            raise FlorinError("insufficient_scope", "This key is read-only: it cannot change anything.")


READER = Authority("")
"""An operator's, for what only reads."""


def worded(error: AdaptersError, authority: Authority | None) -> FlorinError:
    """An error for its reader: a tenant's administrator gets no details of the infrastructure."""
    return translate(error) if authority is None or authority.tenant is None else for_tenant(error)


def no_adapter(name: AdapterName) -> NotFoundError:
    return NotFoundError(f"There is no adapter {str(name)!r}.")


def check_role(key: Key, *roles: Role) -> Key:
    if key.role not in roles:
        raise FlorinError(
            "insufficient_role",
            f"This needs a key of role {' or '.join(roles)}; this key has role {key.role}.",
        )
    return key


def check_own_engine(key: Key, engine: str) -> None:
    """Raises FlorinError for the key of another engine, whether or not there is one of that name."""
    if key.role is Role.ENGINE and key.engine != engine:
        raise FlorinError("insufficient_role", f"This key is for engine {key.engine} and no other.")


def actor_of(key: Key) -> str:
    """Who acts, as the audit names it."""
    return f"key:{key.id}" if key.is_stored and key.id != "bootstrap" else key.id
