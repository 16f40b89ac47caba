"""Engines that say what cannot be, over real sockets: what it costs them, and that it costs nobody else."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from sqlalchemy import select, update
from typer.testing import CliRunner

from gateway.commands.tree import tree
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_spans, usage, usage_records
from gateway.units import HOUR
from loadtests.mock_engine import MockEngine
from tests.support.harness import OPERATOR_KEY, Gateway, fake_adapter, running_gateway
from tests.support.waiting import until
from tests.unit.gateway.metering.make import record

QUICK = {"probe_interval": 0.05, "ledger_maintenance_interval": 0.3}
ABSURD = 9 * 10**18


async def florin(gateway: Gateway, *args: str):
    env = {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
    return await asyncio.to_thread(CliRunner().invoke, tree(), list(args), env=env)


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
            assert (await client.delete("/admin/v1/engines/bad", params={"force": "true"})).status_code < 300
        await until(lambda: len(list(gateway.state.pool.states())) == 1)
    ledger = Ledger(f"sqlite:///{state_dir / 'ledger.db'}")
    assert engines(ledger, engine_counters) == {"good"}
    assert engines(ledger, engine_spans) == {"good", "bad"}
    ledger.close()


async def test_absurd_count_in_the_ledger_does_not_break_finance_queries(
    tmp_path: Path, valkey_url: str, prefix: str
):
    state_dir = tmp_path / "state"
    now = time.time_ns() // 1000
    async with MockEngine() as engine:
        async with running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway:
            await gateway.add_engine("a", engine.url, registered=now)
            await gateway.add_tenant("acme")
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
            await ask(gateway)
            ledger = gateway.state.ledger
            await asyncio.to_thread(
                ledger.insert, [record("elsewhere", dispatched=now, engine="z", tenant="bolt")]
            )
            async with gateway.http() as client:
                assert (await client.get("/finance/v1/costs")).status_code == 200
            await gateway.shipped()
            await asyncio.to_thread(poison, ledger)
            await told(gateway)
        async with running_gateway(state_dir, valkey_url, prefix, **QUICK) as gateway:  # as after a restart
            await gateway.add_tenant("acme")
            await until(lambda: gateway.state.pool.state("a").healthy)
            await told(gateway)
            body = json.loads((await florin(gateway, "cost", "set-aside", "--json")).stdout)
            hour = body["data"][0]["hour"]
            done = await florin(gateway, "cost", "exclude", "a", hour, "--yes")
            assert done.exit_code == 0, done.output
            assert "1 records quarantined" in done.output
            report = await florin(gateway, "cost", "report")
            assert "set aside" not in report.output

            doctor = await florin(gateway, "doctor", "--json")
            assert "set_aside_hours" not in doctor.stdout
            audit = await florin(gateway, "audit", "list", "--action", "usage.exclude", "--json")
            assert f"a@{hour}" in audit.stdout


def poison(ledger: Ledger) -> None:
    """Behind the ledger's back, as an earlier version let it in."""
    with ledger.write() as connection:
        found = connection.execute(select(usage).where(usage.c.engine == "a")).mappings().all()
        row = update(usage_records).where(usage_records.c.id == found[0]["id"])
        connection.execute(row.values(completion_tokens=ABSURD))
        hours = {found[0][name] // HOUR * HOUR for name in ("dispatched", "ended")}
        mark_dirty(connection, [(hour, "a", found[0]["gpu_type"], found[0]["gpu_count"]) for hour in hours])


async def told(gateway: Gateway) -> None:
    """Everybody who asks hears what is wrong, and everything else."""
    async with gateway.http() as client:
        for path in ("costs", "reconciliation", "periods", "usage", "set-aside"):
            answer = await client.get(f"/finance/v1/{path}")
            assert answer.status_code == 200, (path, answer.text)
    report = await florin(gateway, "cost", "report", "--by", "tenant,engine")
    assert report.exit_code == 0
    assert "bolt" in report.output
    assert str(ABSURD) in report.output.replace("\n", "")
    reconciled = await florin(gateway, "cost", "reconcile")
    assert reconciled.exit_code == 1
    assert "set aside" in reconciled.output

    doctor = await florin(gateway, "doctor", "--json")
    [found] = [one for one in json.loads(doctor.stdout)["data"] if one["check"] == "set_aside_hours"]
    assert (found["status"], found["subject"], doctor.exit_code) == ("problem", "a", 1)
    assert "florin cost exclude" in found["remedy"]
