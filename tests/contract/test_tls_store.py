"""Redis by TLS: who is trusted, and what is said when the certificates or the URL are wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.redis import RedisStore
from tests.support.certificates import Authority
from tests.support.tls_relay import TlsRelays
from tests.support.valkey_servers import DATA, ask, eventually, servers
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.at(tmp_path / "ca")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[int]:
    with servers(tmp_path / "valkey") as running:
        port = running.start(*DATA)
        eventually(lambda: ask(port, "PING"))
        yield port


@pytest.fixture
def relays(authority: Authority) -> Iterator[TlsRelays]:
    with TlsRelays(authority.issue("server")) as running:
        yield running


async def said(url: str, timeout: float = PATIENCE_S) -> str:
    """Why the store cannot be used; empty: it can."""
    store = RedisStore(url, timeout=timeout)
    try:
        await store.snapshot()
    except StoreUnavailableError as error:
        return str(error)
    finally:
        await store.close()
    return ""


async def test_what_is_wrong_is_said(authority: Authority, relays: TlsRelays, plain: int, tmp_path: Path):
    url = f"rediss://127.0.0.1:{relays.open(plain)}"
    trusting = f"{url}?ssl_ca_certs={authority.file}"
    another = Authority.at(tmp_path / "another")
    assert await said(trusting) == ""
    assert relays.encrypted
    assert not relays.plain
    for untrusting in (url, f"{url}?ssl_ca_certs={another.file}"):
        assert "certificate verify failed: unable to get local issuer certificate" in await said(untrusting)
    assert f"cannot be read: {tmp_path}/none: No such file" in await said(
        f"{url}?ssl_ca_certs={tmp_path}/none"
    )
    (tmp_path / "rubbish").write_text("rubbish")
    assert f"cannot be read: {tmp_path}/rubbish" in await said(f"{url}?ssl_ca_certs={tmp_path}/rubbish")
    assert "It has never answered by TLS" in await said(
        f"rediss://127.0.0.1:{plain}?ssl_ca_certs={authority.file}", timeout=0.5
    )
    relays.present(authority.issue("expired", days=-1))
    assert "certificate has expired" in await said(trusting)
    relays.present(authority.issue("elsewhere", "elsewhere.example"))
    assert "certificate is not valid for '127.0.0.1'" in await said(trusting)


async def test_a_server_may_ask_for_a_certificate(
    authority: Authority, relays: TlsRelays, plain: int, tmp_path: Path
):
    clients = Authority.at(tmp_path / "clients")
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(clients.file))
    asking.verify_mode = ssl.CERT_REQUIRED
    relays.present(authority.issue("server"), clients=asking)
    url = f"rediss://127.0.0.1:{relays.open(plain)}?ssl_ca_certs={authority.file}"
    own = clients.issue("florin")
    assert "Redis cannot be reached" in await said(url)
    assert await said(f"{url}&ssl_certfile={own.cert}&ssl_keyfile={own.key}") == ""


async def test_authorities_are_read_again_when_they_are_renewed(
    authority: Authority, relays: TlsRelays, plain: int, tmp_path: Path
):
    """And not for each connection: that takes tens of milliseconds of the event loop."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    store = RedisStore(f"rediss://127.0.0.1:{relays.open(plain)}?ssl_ca_certs={trusted}", timeout=PATIENCE_S)
    read = 0
    try:
        with pytest.MonkeyPatch.context() as patch:
            make = ssl.create_default_context

            def counting(*args: object, **options: object) -> ssl.SSLContext:
                nonlocal read
                read += 1
                return make(*args, **options)  # type: ignore[arg-type]

            patch.setattr(ssl, "create_default_context", counting)
            await asyncio.gather(*(store.time() for _ in range(8)))
            assert (read, relays.encrypted > 1) == (1, True)
            renewed = Authority.at(tmp_path / "renewed")
            relays.present(renewed.issue("server"))
            trusted.write_bytes(renewed.file.read_bytes())
            await store._redis.connection_pool.disconnect()
            await store.time()
            assert read == 2
    finally:
        await store.close()
