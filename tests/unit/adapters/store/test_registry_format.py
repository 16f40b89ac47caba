from __future__ import annotations

import pytest

from adapters.errors import RegistryTooNewError
from adapters.store import registry_format
from tests.doubles.memory_store import MemoryStore


async def test_a_registry_of_a_newer_florin_is_refused_and_left_as_it_is():
    store = MemoryStore()
    await registry_format.check(store)
    assert await store.registry_format() is None
    await registry_format.mark(store)
    await registry_format.check(store)
    assert await store.registry_format() == registry_format.FORMAT
    await store.mark_registry(registry_format.FORMAT + 1)
    await registry_format.mark(store)
    assert await store.registry_format() == registry_format.FORMAT + 1
    for _ in range(2):
        with pytest.raises(
            RegistryTooNewError, match=r"newer version of Florin \(its format is 2; this version"
        ):
            await registry_format.check(store)


async def test_without_redis_there_is_nothing_to_refuse():
    store = MemoryStore()
    await store.mark_registry(registry_format.FORMAT + 1)
    store.away = True
    await registry_format.check(store)
    await registry_format.mark(store)
