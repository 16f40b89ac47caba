"""What every kind of test may ask for: a real Valkey server, and a corner of it that is empty."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from adapters.embedded import EmbeddedValkey
from adapters.redis_store import RedisStore

_numbers = itertools.count(1)

# A shell that runs the tests in the background ignores these two, and children inherit that: what is tested
# here must hear them as it would in front of a person.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real server, one per run (per xdist worker)."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey"), fsync="everysec") as server:
        yield server


@pytest.fixture
def valkey_url(valkey: EmbeddedValkey) -> str:
    return valkey.url


@pytest.fixture
def fresh_prefix(valkey: EmbeddedValkey) -> Callable[[], str]:
    """A function that gives a prefix under which the server holds nothing."""
    return lambda: f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def prefix(fresh_prefix: Callable[[], str]) -> str:
    return fresh_prefix()


@pytest.fixture
async def redis_store(valkey_url: str, prefix: str):
    """A store over the real server, empty."""
    store = RedisStore(valkey_url, prefix=prefix)
    yield store
    await store.close()
