"""`florin calibrate` on a real engine: a designed load, a fit, and hours divided by what was measured."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway


def florin(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import gateway.cli; gateway.cli.main()", *words],
        env=os.environ | {"FLORIN_URL": gateway.url, "FLORIN_OPERATOR_KEY": OPERATOR_KEY},
        capture_output=True,
        text=True,
        check=False,
    )


async def test_an_engine_is_measured_and_its_hours_divided_by_it(
    clean_lone: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
):
    engine = clean_lone.engines[0]
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, probe_timeout=5.0) as gateway,
        gateway.http() as http,
    ):
        body = {
            "name": "e0", "url": engine.url, "base": demo_model.served_name, "gpu_type": "cpu",
            "slots": 2, "cpu_slots": 8, "max_rank": 8,
        }  # fmt: skip
        assert (await http.post("/admin/v1/engines", json=body)).status_code == 201
        assert (await http.post("/admin/v1/tenants", json={"name": "acme"})).status_code == 201
        body = {"adapter": "acme/support", "source": str(demo_model.adapters["acme"].path)}
        assert (await http.post("/admin/v1/adapters", json=body)).status_code == 201

        words = ("calibrate", "e0", "--adapter", "acme/support", "--seconds", "0.15", "--repeats", "1")
        refused = await asyncio.to_thread(florin, gateway, *words)
        assert refused.returncode == 2
        assert "drain it first" in refused.stderr

        await http.put("/admin/v1/engines/e0/state", json={"state": "draining"})
        done = await asyncio.to_thread(florin, gateway, *words, "--json")
        assert done.returncode == 0, done.stderr
        kept = json.loads(done.stdout)
        weights = kept["fit"]["weights"]
        for name, weight in weights.items():
            assert weight["measured"], name
            assert weight["low_ps"] <= weight["ps"] <= weight["high_ps"]
        # What no engine can do otherwise: a token that is in the cache costs less than one that is not.
        # Whether making or reading one costs more depends on the machine, and on what else it does.
        assert min(weights["decode"]["ps"], weights["prefill"]["ps"]) > weights["cached"]["ps"] >= 0
        assert weights["load"]["ps"] > 0
        assert kept["engine_version"].startswith("0.")
        assert kept["fit"]["r_squared"] > 0.5

        listed = (await http.get("/admin/v1/calibrations")).json()["data"]
        assert [c["id"] for c in listed] == [kept["id"]]

        # From then on the engine's hours are divided by it.
        await http.put("/admin/v1/engines/e0/state", json={"state": "active"})
        answer = await http.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant"})
        gateway.keys["acme"] = answer.json()["key"]
        async with gateway.client("acme", timeout=120) as client:
            await client.completions.create(model="support", prompt="Hi", max_tokens=4)
        report = (await http.get("/finance/v1/costs", params={"by": "tenant,gpu_type"})).json()
        assert report["weights"] != "uncalibrated", report
