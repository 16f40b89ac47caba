"""The ledger's PostgreSQL dies under load, and its standby is promoted, which lacks the last commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from loadtests.mock_engine import MockEngine
from loadtests.postgres import PRIMARY, Postgres
from tests.support.harness import Load, fake_adapter, running_gateway
from tests.support.waiting import until


@pytest.fixture
def primary() -> Iterator[Postgres]:
    server = Postgres(PRIMARY)
    try:
        server.start()
        with server.connect() as connection:
            connection.execute("CREATE DATABASE ledger")
        yield server
    finally:
        server.stop()


@pytest.fixture
def standby(primary: Postgres) -> Iterator[Postgres]:
    server = Postgres(PRIMARY, primary=primary)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def rows(server: Postgres) -> Counter[str]:
    """How often the ledger has each request."""
    try:
        with psycopg.connect(
            host="127.0.0.1", port=server.port, user="florin", dbname="ledger"
        ) as connection:
            return Counter(row[0] for row in connection.execute("SELECT request_id FROM usage"))
    except psycopg.errors.UndefinedTable:  # no worker has needed it yet
        return Counter()


def replicas(server: Postgres) -> int:
    with server.connect() as connection:
        (count,) = connection.execute("SELECT count(*) FROM pg_stat_replication").fetchone() or (0,)
        return int(count)


async def test_each_request_is_counted_once_after_a_failover_that_lost_commits(
    tmp_path: Path, valkey_url: str, prefix: str, primary: Postgres, standby: Postgres
):
    url = f"postgresql+psycopg://florin@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/ledger"
    async with (
        MockEngine() as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, ledger_url=url) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        load = Load(gateway)
        async with asyncio.TaskGroup() as customers:  # a request that fails ends the test
            for _ in range(4):
                customers.create_task(load.run())
            await until(lambda: rows(standby))

            with standby.connect() as connection:  # replication is cut
                connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
                connection.execute("SELECT pg_reload_conf()")
            await until(lambda: not replicas(primary))
            await load.more(20)
            await gateway.shipped()
            acknowledged, replicated = rows(primary), rows(standby)
            assert len(acknowledged - replicated) >= 20

            primary.kill()
            await until(lambda: gateway.state.meter.backlog > 0)
            await load.more(20)
            await asyncio.to_thread(standby.promote)
            await load.more(20)
            load.stop()
        await until(lambda: len(rows(standby)) >= len(load.answered))
        assert rows(standby) == Counter(load.answered)

        async with gateway.http() as http:
            costs = (await http.get("/finance/v1/costs", params={"by": "tenant"})).json()
        metrics, recovered = gateway.state.metrics.registry, {"result": "recovered"}
        lost = len(acknowledged - replicated)
        await until(lambda: (metrics.get_sample_value("florin_usage_records_total", recovered) or 0) >= lost)
    assert [row["requests"] for row in costs["rows"]] == [len(load.answered)]
