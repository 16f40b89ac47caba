"""The ledger behind PgBouncer in transaction mode, where each transaction may run on another server connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text

from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import usage_records
from loadtests.mock_engine import MockEngine
from loadtests.postgres import Postgres
from tests.support.harness import fake_adapter, running_gateway
from tests.support.missing import absent
from tests.support.pgbouncer import find_pgbouncer, pgbouncer
from tests.unit.gateway.metering.make import record


@pytest.fixture
def pooled_url(postgres: Postgres) -> Iterator[str]:
    """The URL of a database without any table."""
    binary = find_pgbouncer()
    if binary is None:
        absent("PgBouncer is not installed: apt-get install pgbouncer")
    with pgbouncer(binary, postgres.port) as port, postgres.database() as url:
        yield url.replace(f":{postgres.port}/", f":{port}/")


def test_many_use_a_ledger_at_once(pooled_url: str):
    """They migrate it, insert, read by cursor, and roll up."""
    ledgers = [Ledger(pooled_url) for _ in range(4)]

    def work(number: int) -> None:
        ledger = ledgers[number % 4]
        for portion in range(5):
            ledger.insert([record(f"{number}-{portion}-{n}") for n in range(20)])
            with ledger.read() as connection:
                query = select(usage_records.c.id).execution_options(yield_per=7)
                assert sum(1 for _ in connection.execute(query)) >= 20 * (portion + 1)
        roll(ledger, 200 * 3_600_000_000)

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        one, other = ledgers[:2]
        with one.read() as connection:
            server = server_of(connection)
        with other.read() as connection, one.read() as again:  # one client, several server connections
            assert server_of(connection) == server
            assert server_of(again) != server
        assert len(ledgers[0].usage(start=0, end=2**62, limit=1000)) == 800
        with ledgers[0].read() as connection:
            prepared = connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar()
        assert prepared == 0
    finally:
        for ledger in ledgers:
            ledger.close()


def server_of(connection: Connection) -> int:
    """The process that serves it just now."""
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


async def test_a_gateway_with_its_reports(tmp_path: Path, valkey_url: str, prefix: str, pooled_url: str):
    async with (
        MockEngine() as engine,
        running_gateway(tmp_path / "state", valkey_url, prefix, ledger_url=pooled_url) as gateway,
    ):
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        async with gateway.client("acme") as client:
            ask = client.chat.completions.create
            message = {"role": "user", "content": "x"}
            await asyncio.gather(
                *(ask(model="support", messages=[message], max_tokens=2) for _ in range(30))  # type: ignore[call-overload]
            )
        await gateway.shipped()
        async with gateway.http() as http:
            costs = (await http.get("/finance/v1/costs", params={"by": "tenant"})).json()
            doctor = (await http.get("/admin/v1/doctor")).json()["data"]
        assert [row["requests"] for row in costs["rows"]] == [30]
        assert ("ledger", "ok") in {(d["check"], d["status"]) for d in doctor}
