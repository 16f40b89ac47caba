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
from tests.support.valkey_servers import Servers, servers, slot_owner, start_cluster, start_sentinels


def deployed(
    running: Servers, directory: Path, kind: str, silent: int, relays: TlsRelays, options: str
) -> tuple[str, int]:
    """The URL, by TLS, and the primary's own port."""
    ports: dict[int, int] = {}  # of relays: the servers'

    def announced(port: int) -> int:
        found = relays.open(port)
        ports[found] = port
        return found

    if kind == "sentinel":
        primary, _, asked = start_sentinels(running, directory, announced)
        asked, path = [announced(port) for port in asked], "/main"
    else:
        nodes = start_cluster(running, announced)
        primary, path = ports[slot_owner(nodes[0], "{florin}")], ""
        asked = list(ports)
    seeds = ",".join(f"127.0.0.1:{port}" for port in (silent, *asked))
    return f"rediss+{kind}://{seeds}{path}?{options}", primary


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that never answers, as a host that is cut off."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


# On a busy machine redis-py lets go of a connection, now and then, before it is closed, and closes it when it is
# collected. Which call does it is not known yet.
@pytest.mark.filterwarnings("ignore:unclosed Connection:ResourceWarning")
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_after_the_primarys_death_everything_goes_on(tmp_path: Path, silent: int, kind: str):
    authority = Authority.at(tmp_path / "ca")
    options = f"ssl_ca_certs={authority.file}"
    with TlsRelays(authority.issue("server")) as relays, servers(tmp_path) as running:
        url, primary = await asyncio.to_thread(deployed, running, tmp_path, kind, silent, relays, options)
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
