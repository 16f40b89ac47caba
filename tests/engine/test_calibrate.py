"""`florin calibrate` on a real engine: a designed load, a fit, and hours divided by what was measured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from gateway.commands.tree import tree
from tests.engine.conftest import SETTINGS, add_adapter, add_tenant, register
from tests.support.harness import OPERATOR_KEY, running_gateway


@pytest.mark.long  # takes a minute of a processor; tests/unit/gateway/costs/calibration/test_commands.py has it without an engine
async def test_an_engine_is_measured_and_its_hours_divided_by_it(
    clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
):
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS) as gateway,
        gateway.http() as http,
    ):
        await register(gateway, clean_fleet.engines[0].url, demo_model.served_name, gpu_type="cpu")
        await add_tenant(gateway, "acme")
        await add_adapter(gateway, "acme/support", demo_model.adapters["acme"].path)
        await gateway.set_state("e0", "draining")
        words = [
            "calibrate",
            "e0",
            "--adapter",
            "acme/support",
            "--seconds",
            "0.15",
            "--repeats",
            "1",
            "--json",
        ]
        env = {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY}
        done = await asyncio.to_thread(CliRunner().invoke, tree(), words, env=env)
        assert done.exit_code == 0, done.output
        kept = json.loads(done.stdout)
        weights = kept["document"]["fit"]["weights"]
        assert weights.keys() >= {"prefill", "cached", "decode", "load"}
        for name, weight in weights.items():  # how long each takes depends on what else the machine does
            assert weight["measured"], name
            assert weight["low_ps"] <= weight["ps"] <= weight["high_ps"]
        assert kept["engine_version"].startswith("0.")

        listed = (await http.get("/admin/v1/calibrations")).json()["data"]
        assert [c["id"] for c in listed] == [kept["id"]]

        # From then on the engine's hours are divided by it.
        await gateway.set_state("e0", "active")
        async with gateway.client("acme", timeout=120) as client:
            await client.completions.create(model="support", prompt="Hi", max_tokens=4)
        report = (await http.get("/finance/v1/costs", params={"by": "tenant,gpu_type"})).json()
        assert report["weights"] != "uncalibrated", report
