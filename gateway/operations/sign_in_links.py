"""Links that sign in to the console once, without a key being typed."""

from __future__ import annotations

from adapters.store.protocol.registry import AuditNote
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.tenants.directory import Key


async def create(state: State, key: Key) -> tuple[str, int]:
    """The secret of a link that acts as `key`, and when it expires, Unix microseconds. Raises FlorinError,
    StoreUnavailableError."""
    secret, expires = await state.sessions.link(key)
    await state.store.commit((), audit=AuditNote(actor_of(key), "key.sign_in_link", key.id))
    return secret, expires
