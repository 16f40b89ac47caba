"""Everything that Florin keeps in Redis. `adapters.store.redis` and the tests' memory store implement it.

A store is seven things, and most of its users need only one: the registry, the placement, the coordination of
workers and agents, the limits of tenants and keys, the workers' reports of activity, their counts of
canaries, and the console's sessions.
"""

from __future__ import annotations

from typing import Protocol

from adapters.store.protocol.activity import ActivityStore
from adapters.store.protocol.canaries import CanaryStore
from adapters.store.protocol.coordination import CoordinationStore
from adapters.store.protocol.limits import LimitStore
from adapters.store.protocol.placement import PlacementStore
from adapters.store.protocol.registry import RegistryStore
from adapters.store.protocol.sessions import SessionStore


class Store(
    RegistryStore,
    PlacementStore,
    CoordinationStore,
    LimitStore,
    ActivityStore,
    CanaryStore,
    SessionStore,
    Protocol,
):
    """All of the shared state. Every method raises StoreUnavailableError if the server cannot be reached in
    time."""

    async def close(self) -> None: ...
