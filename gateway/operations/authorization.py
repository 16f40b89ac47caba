"""Who may do what: by role, and by the engine that a key is for."""

from __future__ import annotations

from gateway.errors import FlorinError
from gateway.tenants.directory import Key, Role


def check_role(key: Key, *roles: Role) -> Key:
    if key.role not in roles:
        raise FlorinError(
            "insufficient_role", f"This needs a key of role {' or '.join(roles)}; this one's is {key.role}."
        )
    return key


def check_own_engine(key: Key, engine: str) -> None:
    """Raises FlorinError for the key of another engine, whether or not there is one of that name."""
    if key.role is Role.ENGINE and key.engine != engine:
        raise FlorinError("insufficient_role", f"This key is for engine {key.engine} and no other.")


def actor_of(key: Key) -> str:
    """Who acts, as the audit names it."""
    return "bootstrap" if key.id == "bootstrap" else f"key:{key.id}"
