"""What a key may do within its role. A key without scopes costs one comparison of an empty tuple."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.errors import FlorinError
from gateway.tenants.directory import Key


def covers(key: Key, adapter: str) -> bool:
    """Whether the key's scopes include an adapter, by full name; empty: the base model."""
    patterns = key.scopes.adapters
    return not patterns or _covers(patterns, key.tenant, adapter)


@lru_cache(maxsize=4096)
def _covers(patterns: tuple[str, ...], tenant: str, adapter: str) -> bool:
    owner, _, name = adapter.partition("/")
    for pattern in patterns:
        whose, slash, which = pattern.rpartition("/")
        if fnmatchcase(owner, whose if slash else tenant) and fnmatchcase(name, which):
            return bool(adapter)
    return False


def check_endpoint(key: Key, path: str) -> None:
    """Whether the key may call a path of the data plane. Raises FlorinError."""
    scopes = key.scopes
    if scopes.read_only:
        raise FlorinError("insufficient_scope", "This key is read-only: it cannot call models.")
    if scopes.endpoints and path not in scopes.endpoints:
        raise FlorinError(
            "insufficient_scope", f"This key may call {', '.join(scopes.endpoints)}, and not {path}."
        )
