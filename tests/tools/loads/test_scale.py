"""The registry that the scale bench writes: what operations would have written, and changes that leave the
customers who ask alone."""

from __future__ import annotations

from itertools import islice

from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.feed import Follower
from gateway.tenants.directory import Directory
from loadtests.scale.registry import SLOTS, changes, fill
from tests.doubles.memory_store import MemoryStore


async def test_customers_resolve_and_go_on_resolving_while_the_registry_changes():
    store, catalog, directory = MemoryStore(), Catalog(), Directory()
    made = await fill(store, 1_000, 20, "http://127.0.0.1:1")
    follower = Follower(store, [catalog, directory, Residency()])
    await follower.start()
    assert (len(catalog.adapters), len(directory.tenants), len(catalog.versions)) == (1_000, 20, 1_000)

    def resolved() -> list:
        found = []
        for adapter, text in made.customers:
            key = directory.find(text.encode())
            assert key
            assert key.revoked is None
            found.append(catalog.resolve(key.tenant, adapter, base_access=False))
        return found

    before = resolved()
    assert len(before) == SLOTS
    assert None not in before
    seq = 0
    for commit in islice(changes(made), 5_000):
        seq = await store.commit(commit)
    assert await follower.wait_for(seq, 30)
    assert len(catalog.versions) > 1_900  # about each fifth commit makes one
    assert resolved() == before
    await follower.close()
