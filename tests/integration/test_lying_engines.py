"""Engines that say what cannot be, over real sockets: what it costs them, and that it costs nobody else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sqlalchemy import select, update

from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_spans, usage_records
from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until
from tests.unit.gateway.metering.make import record

QUICK = {"probe_interval": 0.05, "ledger_maintenance_interval": 0.3}


def engines(ledger: Ledger, table) -> set[str]:
    with ledger.read() as connection:
        return set(connection.execute(select(table.c.engine).distinct()).scalars())


async def ask(gateway: Gateway) -> None:
    async with gateway.client("acme") as client:
        await client.chat.completions.create(
            model="support", messages=[{"role": "user", "content": "Hello"}], max_tokens=8
        )


async def text_of(gateway: Gateway) -> str:
    async with gateway.http() as client:
        return (await client.get("/metrics")).text


async def test_the_metrics_of_one_engine_stop_the_accounting_of_no_other(
    tmp_path: Path, valkey_url: str, prefix: str
):
    state_dir = tmp_path / "state"
    async with (
        MockEngine() as good,
        MockEngine() as bad,
        running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway,
    ):
        bad.faults.metrics = "vllm:prompt_tokens_total 1e30\nvllm:generation_tokens_total 1\n"
        await gateway.add_engine("bad", bad.url, registered=time.time_ns() // 1000)
        await gateway.add_engine("good", good.url, registered=time.time_ns() // 1000)
        await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        await until(lambda: all(s.healthy for s in gateway.state.pool.states()))
        await ask(gateway)
        await until(lambda: bad.state.probes["/metrics"] > 3 and good.state.probes["/metrics"] > 3)
        shown = await text_of(gateway)
        assert 'florin_engine_samples_refused_total{engine="bad"}' in shown
        assert 'florin_engine_samples_refused_total{engine="good"}' not in shown
        async with gateway.http() as client:
            assert (await client.delete("/admin/v1/engines/bad")).status_code < 300
        await until(lambda: len(list(gateway.state.pool.states())) == 1)
    ledger = Ledger(f"sqlite:///{state_dir / 'ledger.db'}")
    assert engines(ledger, engine_counters) == {"good"}
    assert engines(ledger, engine_spans) == {"good", "bad"}
    ledger.close()


async def test_doctor_names_an_hour_that_cannot_be_computed(gateway: Gateway):
    """With a count that an earlier version let in. tests/unit/gateway/costs/set_aside has what finance hears of it."""
    lying = record("lying", dispatched=time.time_ns() // 1000, engine="a")
    await asyncio.to_thread(gateway.state.ledger.insert, [lying])
    with gateway.state.ledger.write() as connection:
        absurd = update(usage_records).where(usage_records.c.id == lying.id)
        connection.execute(absurd.values(completion_tokens=9 * 10**18))
    async with gateway.http() as client:
        assert (await client.get("/finance/v1/costs")).status_code == 200
        found = (await client.get("/admin/v1/doctor")).json()["data"]
    [told] = [one for one in found if one["check"] == "set_aside_hours"]
    assert (told["status"], told["subject"]) == ("problem", "a")
    assert "florin cost exclude" in told["remedy"]
