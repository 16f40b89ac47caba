"""The store behind Sentinels and in a Cluster, by TLS: the primary is killed, and everything goes on with its replica."""

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
from tests.support.certificates import Authority
from tests.support.tls_relay import TlsRelays
from tests.support.valkey_servers import (
    Servers,
    be_patient,
    servers,
    slot_owner,
    start_cluster,
    start_sentinels,
)
from tests.support.waiting import PATIENCE_S, until


def deployed(
    running: Servers, directory: Path, kind: str, silent: int, relays: TlsRelays, options: str
) -> tuple[str, int, list[int]]:
    """The URL, by TLS, the primary's own port, and the ports of those that decide who it is: patient ones."""
    ports: dict[int, int] = {}  # of relays: the servers'

    def announced(port: int) -> int:
        found = relays.open(port)
        ports[found] = port
        return found

    if kind == "sentinel":
        _, _, deciding = start_sentinels(running, directory, announced)
        be_patient(kind, deciding, 60_000)
        with Redis(port=deciding[0]) as sentinel:
            _, found = sentinel.sentinel_get_master_addr_by_name("main")
        asked, path = [announced(port) for port in deciding], "/main"
    else:
        deciding = start_cluster(running, announced)
        be_patient(kind, deciding, 60_000)
        found, path = slot_owner(deciding[0], "{florin}"), ""
        asked = list(ports)
    seeds = ",".join(f"127.0.0.1:{port}" for port in (silent, *asked))
    return f"rediss+{kind}://{seeds}{path}?{options}", ports[found], deciding


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that never answers, as a host that is cut off."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_after_the_primarys_death_everything_goes_on(tmp_path: Path, silent: int, kind: str):
    authority = Authority.at(tmp_path / "ca")
    options = f"ssl_ca_certs={authority.file}"
    with TlsRelays(authority.issue("server")) as relays, servers(tmp_path) as running:
        url, primary, deciding = await asyncio.to_thread(
            deployed, running, tmp_path, kind, silent, relays, options
        )
        store = RedisStore(url, timeout=5)  # a quarter of it is lost on the silent one
        tenants = Tenants()
        follower = Follower(store, [tenants])
        try:
            await follower.start()
            assert await unavailable_calls(store) == []
            acknowledged = await register(store, range(20))
            with Redis(port=primary) as server:
                assert server.execute_command("WAIT", 1, 60_000)  # replication is asynchronous
            be_patient(kind, deciding, 500)
            running.kill(primary)
            await until(lambda: register(store, range(100, 101)))  # one that fails may take five seconds
            while len(more := await register(store, range(100, 120))) < 20:
                pass
            be_patient(kind, (port for port in deciding if port != primary), 60_000)
            found = await store.snapshot()
            assert {*acknowledged, *more} <= found.documents["tenant"].keys()
            assert await follower.wait_for(found.position.seq, PATIENCE_S)
            assert tenants.known == found.documents["tenant"].keys()
            assert not follower.lost
            assert await unavailable_calls(store) == []
            assert relays.encrypted
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
