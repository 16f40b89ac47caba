"""Where this installation's registry, ledger and files are, for commands that run beside the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from sqlalchemy import Engine, make_url

from adapters.store.embedded import EmbeddedValkey
from adapters.store.redis.registry_backup import RegistryBackup
from gateway.config import Settings
from gateway.metering.ledger.database import open_engine, translated


@contextmanager
def registry_url(settings: Settings) -> Iterator[str]:
    """The URL of the registry's server. Joins the embedded server of a running gateway, or starts it. Raises
    EmbeddedError."""
    if settings.redis_url:
        yield settings.redis_url
        return
    server = EmbeddedValkey(settings.state_dir)
    if server.answers:
        yield server.url
        return
    with server:
        yield server.url


@asynccontextmanager
async def registry(settings: Settings, url: str) -> AsyncIterator[RegistryBackup]:
    store = RegistryBackup(url, prefix=settings.redis_prefix)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def ledger_engine(settings: Settings) -> Iterator[Engine]:
    """Raises LedgerUnavailableError."""
    with translated():
        engine = open_engine(make_url(settings.ledger))
    try:
        yield engine
    finally:
        with suppress(OSError):
            engine.dispose()
