"""That every worker hears of a change within a second, by a clock that only the worker's own pauses move: how long the
machine takes is no part of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from adapters.store.feed import Follower
from adapters.store.protocol.registry import Change
from adapters.store.redis import RedisStore, registry
from gateway.tenants import directory
from gateway.tenants.directory import Directory, Role
from tests.support.waiting import LOOK_S, PATIENCE_S, until

WORKERS = 3


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long workers have paused, in seconds. Nobody waits for it."""
    lengths: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        lengths.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(registry, "monotonic", lambda: 0.0)  # all changes come at once
    monkeypatch.setattr(
        registry, "QUIET_MS", int(2 * PATIENCE_S * 1000)
    )  # to look again in vain takes too long
    return lengths


@pytest.fixture
async def workers(valkey_url: str, prefix: str) -> AsyncIterator[list[Directory]]:
    stores = [RedisStore(valkey_url, prefix=prefix, timeout=3 * PATIENCE_S) for _ in range(WORKERS)]
    directories = [Directory() for _ in stores]
    followers = [Follower(store, [known]) for store, known in zip(stores, directories, strict=True)]
    for follower in followers:
        await follower.start()
    yield directories
    for follower in followers:
        await follower.close()
    for store in stores:
        await store.close()


async def test_every_worker_knows_a_revoked_key_within_a_second(
    redis_store: RedisStore, workers: list[Directory], pauses: list[float]
) -> None:
    """Also if it is revoked at the beginning of the longest pause."""
    key, _ = directory.mint("acme", Role.TENANT, 1)
    revoked = replace(key, revoked=2)
    for document in (key, revoked):
        await redis_store.commit([Change("key", key.id, directory.dump(document))])
        await until(lambda document=document: all(known.keys.get(key.id) == document for known in workers))
    assert 0 < max(seconds for seconds in pauses if seconds != LOOK_S) < 1  # those of `until` are its own
