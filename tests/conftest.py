"""What every kind of test may ask for: a real Valkey server, and a corner of it that is empty; a ledger of its
own on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import math
import os
import signal
import ssl
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis.asyncio
import redis.utils
from httpx2._config import DEFAULT_TIMEOUT_CONFIG

from adapters.store.embedded import EmbeddedValkey
from adapters.store.redis import RedisStore
from gateway.metering.ledger.ledger import Ledger
from loadtests.postgres import Postgres
from tests.support import forms, search, statements
from tests.support.empty_ledgers import EmptyLedgers, Fill, put_sqlite
from tests.support.forking import executed, florin_is_forked, forking  # noqa: F401  # two are fixtures
from tests.support.missing import missing
from tests.support.promtool import NoPromtoolError
from tests.support.promtool import promtool as find_promtool
from tests.support.waiting import PATIENCE_S

search.begin()
statements.compile_once()

# A client without a timeout of its own would give up after five seconds, and so would a test that the machine stops
# for ten.
for _part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _part, PATIENCE_S)
for _class in (redis.Redis, redis.connection.AbstractConnection):
    _init = inspect.unwrap(_class.__init__)
    _names = _init.__code__.co_varnames[: _init.__code__.co_argcount][-len(_init.__defaults__) :]
    _defaults = dict(zip(_names, _init.__defaults__, strict=True)) | {"socket_timeout": PATIENCE_S}
    _init.__defaults__ = tuple(_defaults.values())
for _class in (redis.asyncio.Redis, redis.asyncio.connection.AbstractConnection):
    inspect.unwrap(_class.__init__).__kwdefaults__["socket_timeout"] = PATIENCE_S


SLOWEST_FIRST = ("integration", "field", "contract", "property")
"""Folders of tests, besides the browser's. Those of all others take milliseconds each."""
LIBRARIES = ("anthropic", "hypothesis", "openai", "playwright.async_api", "schemathesis")
"""What tests take long to import, besides Florin."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no":  # it will start workers
        forked_workers = ExitStack()
        forked_workers.enter_context(forking(LIBRARIES))
        config.add_cleanup(forked_workers.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    forms.select(config, items)
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = _dealt(items, workers)


def _dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """xdist gives each worker as many tests in a row, and a worker that is done takes over the end of another's row.
    So each row begins with its share of the slow modules: some wait for processes while others compute, and the last
    tests to be shared are quick ones. The first row's share is the browser's tests, which have one world."""
    modules: dict[Path, list[pytest.Item]] = {}
    browser, quick = [], []
    for item in items:
        folder = _folder(item)
        if folder == "browser":
            browser.append(item)
        elif folder in SLOWEST_FIRST:
            modules.setdefault(item.path, []).append(item)
        else:
            quick.append(item)
    slow = sorted(modules.values(), key=lambda module: SLOWEST_FIRST.index(_folder(module[0])))
    rows = [browser, *([] for _ in range(workers - 1))]
    for module in slow:
        min(rows[1:] or rows, key=len).extend(module)
    length = math.ceil(len(items) / workers)
    for row in rows:
        free = max(0, length - len(row))
        row.extend(quick[:free])
        del quick[:free]
    return [item for row in rows for item in row]


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


_numbers = itertools.count(1)

# A shell that runs the tests in the background ignores these two, and children inherit that: what is tested
# here must hear them as it would in front of a person.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Importing everything makes little garbage, and looking for it is an eighth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _young_objects_only() -> None:
    """What is there before a module's tests need not be looked through after each of them. Nothing is unfrozen:
    looking through half a million objects again takes 0.4 s, for each module in each xdist worker."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leaks_show_where_they_are_made(request: pytest.FixtureRequest) -> Iterator[None]:
    """A socket that a test leaves to the garbage collector fails that test, not one that happens to run when
    garbage is collected. (Set up before the test's event loop, and so torn down after it.)"""
    yield
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        gc.collect()
        gc.freeze()  # what lives longer than a test need not be looked through after each that follows


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    """Each HTTP client would read the same hundred and fifty certificates, for 20 ms of a processor and more: half of
    what many a test takes. Those that trust what they are told to are not concerned."""
    trusted = _named_authorities()

    def sharing(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        usual = functools.cache(create)

        def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
            if verify is True and cert is None and _named_authorities() == trusted:
                return usual(trust_env=trust_env)
            return create(verify, cert, trust_env)

        return context

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx2._transports.default, "create_ssl_context", sharing(httpx2.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _redis_py_knows_its_version() -> Iterator[None]:
    """Each connection would read it from the file of the package's metadata: a tenth of what a gateway takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.utils, "get_lib_version", functools.cache(redis.utils.get_lib_version))
        yield


def _named_authorities() -> list[str | None]:
    return [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]


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
    store = RedisStore(valkey_url, prefix=prefix, timeout=PATIENCE_S)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def promtool() -> str:
    """Path of Prometheus's own checker."""
    try:
        return find_promtool()
    except NoPromtoolError as error:
        missing(error)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real server, one per run (per xdist worker), started for the first test that asks."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> Iterator[str]:
    """Name of a database that is an empty ledger: copying it is faster than migrating each test's."""
    with postgres.database() as url:
        made = Ledger(url)
        with made.read():
            pass
        made.close()
        yield url.rpartition("/")[2]


@pytest.fixture(scope="session")
def empty_ledgers(postgres: Postgres, postgres_template: str) -> Iterator[EmptyLedgers]:
    lent = EmptyLedgers(postgres, postgres_template)
    yield lent
    lent.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty ledger of this test's own, on SQLite or PostgreSQL: tests/support/forms.py says when on which."""
    if request.param == "sqlite":
        yield f"sqlite:///{put_sqlite(tmp_path / 'ledger' / 'ledger.db')}"
        return
    lent: EmptyLedgers = request.getfixturevalue("empty_ledgers")
    with lent.lend() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def blank_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without any table, of the same kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'blank.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def ledger_with(tmp_path: Path) -> Iterator[Callable[..., Ledger]]:
    """A function that opens a ledger of this test's own on SQLite, with what `fill(ledger, *args)` puts into one. For
    tests in which the kind of database does not matter."""
    with ExitStack() as opened:

        def open_ledger(fill: Fill | None = None, *args: Hashable, name: str = "ledger") -> Ledger:
            ledger = Ledger(f"sqlite:///{put_sqlite(tmp_path / f'{name}.db', fill, *args)}")
            opened.callback(ledger.close)
            return ledger

        yield open_ledger


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    made = Ledger(ledger_url)
    yield made
    made.close()
