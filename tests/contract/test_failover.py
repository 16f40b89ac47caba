"""The store behind Sentinels and in a Cluster: the primary is killed, and everything goes on with its replica."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from adapters.errors import StoreUnavailableError
from adapters.store.feed import Follower
from adapters.store.protocol.registry import Change
from adapters.store.redis import RedisStore
from tests.contract.test_outages import Tenants, every_call
from tests.support.valkey_servers import Servers, servers, start_cluster, start_sentinels


def slot_owner(port: int, key: str) -> int:
    with Redis(port=port) as server:
        slot = server.execute_command("CLUSTER KEYSLOT", key)
        for first, last, owner, *_ in server.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return int(owner[1])
    raise AssertionError


def deployed(running: Servers, directory: Path, kind: str, silent: int) -> tuple[str, int]:
    """The URL, and the primary's port."""
    if kind == "sentinel":
        primary, _, sentinels = start_sentinels(running, directory)
        hosts = ",".join(f"127.0.0.1:{port}" for port in (silent, *sentinels))
        return f"redis+sentinel://{hosts}/main", primary
    nodes = start_cluster(running)
    seeds = ",".join(f"127.0.0.1:{port}" for port in (silent, *nodes))
    return f"redis+cluster://{seeds}", slot_owner(nodes[0], "{florin}")


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that never answers, as a host that is cut off."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_after_the_primarys_death_everything_goes_on(tmp_path: Path, silent: int, kind: str):
    with servers(tmp_path) as running:
        url, primary = await asyncio.to_thread(deployed, running, tmp_path, kind, silent)
        store = RedisStore(url)
        tenants = Tenants()
        follower = Follower(store, [tenants])
        try:
            await follower.start()
            assert await unavailable_calls(store) == []
            acknowledged = await register(store, range(20))
            with Redis(port=primary) as server:
                server.execute_command("WAIT", 1, 5000)  # replication is asynchronous
            running.kill(primary)
            async with asyncio.timeout(10):
                while len(more := await register(store, range(100, 120))) < 20:
                    await asyncio.sleep(0.05)
            found = await store.snapshot()
            assert {*acknowledged, *more} <= found.documents["tenant"].keys()
            assert await follower.wait_for(found.position.seq, 10)
            assert tenants.known == found.documents["tenant"].keys()
            assert not follower.lost
            assert await unavailable_calls(store) == []
        finally:
            await follower.close()
            await store.close()


async def unavailable_calls(store: RedisStore) -> list[StoreUnavailableError]:
    return [found for found in await every_call(store) if isinstance(found, StoreUnavailableError)]


async def register(store: RedisStore, numbers: range) -> list[str]:
    """What was acknowledged."""
    done = []
    for number in numbers:
        try:
            await store.commit([Change("tenant", f"t{number}", "{}")])
        except StoreUnavailableError:
            continue
        done.append(f"t{number}")
    return done
