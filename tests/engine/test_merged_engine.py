"""An engine with an adapter merged into its weights, on real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.output import write_merged_model
from deploy.demo.engine_env import EngineEnv
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import add_customers, register, serving
from tests.engine.test_gateway import ask, messages
from tests.support.waiting import until


@pytest.mark.long  # starts an engine of its own
async def test_it_answers_as_the_adapter_does_elsewhere(
    clean_fleet: Fleet,
    engine_env: EngineEnv,
    demo_model: DemoModel,
    tmp_path: Path,
    valkey_url: str,
    prefix: str,
):
    async with serving(
        clean_fleet, tmp_path / "state", valkey_url, prefix, placement_interval=0.2
    ) as gateway:
        await add_customers(gateway, demo_model)
        version = gateway.state.catalog.versions["acme/support@v1"]
        elsewhere = await ask(gateway, "acme", demo_model.questions[0])
        merged = tmp_path / "merged"
        write_merged_model(
            merged, read_adapter(Path(version.path)), read_base_weights(demo_model.base), None, replace=False
        )
        served = DemoModel(merged, version.engine_name, "", 8, (), {})
        options = EngineOptions(max_model_len=512, max_num_seqs=8, kv_bytes=32 * 1024 * 1024)
        with Fleet(engine_env, served, logs=tmp_path / "logs", count=1, options=options) as own:
            own.start()
            body = {"name": "m", "serves": version.id, "slots": None, "cpu_slots": None, "max_rank": None}
            await register(gateway, own.engines[0].url, demo_model.served_name, **body)
            await until(lambda: "m" in gateway.state.residency.holders(version.engine_name))
            for name in ("e0", "e1"):
                await gateway.set_state(name, "draining")
            async with gateway.client("acme", timeout=120) as client:
                raw = await client.chat.completions.with_raw_response.create(
                    model="support", messages=messages(demo_model.questions[0]), temperature=0, max_tokens=200
                )
        assert raw.headers["x-florin-engine"] == "m"
        assert raw.parse().choices[0].message.content == elsewhere
