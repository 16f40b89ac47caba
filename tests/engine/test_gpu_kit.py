"""The kit that measures a GPU, dry: every stage as it would run there, on an engine that `florin engine run` starts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.demo.engine_env import EngineEnv
from deploy.demo.model import DemoModel
from loadtests.gpu import summaries
from loadtests.gpu.measure import FILE, machine, measure
from loadtests.gpu.page import NOT_YET, rendered
from loadtests.gpu.results import Results
from loadtests.gpu.scale import CPU
from loadtests.gpu.site import EngineProgram, Site
from loadtests.gpu.stages import STAGES

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "1", "FLORIN_ENGINE_CPU": "1", "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip


@pytest.mark.long
async def test_every_stage_is_measured(engine_env: EngineEnv, demo_model: DemoModel, tmp_path: Path):
    if engine_env.gpus:
        pytest.skip("the flags are those of the CPU build")
    program = EngineProgram(engine_env.python, None, "cpu", ENVIRONMENT)
    facts = machine(CPU, program)
    lines: list[str] = []
    out = tmp_path / "out"
    out.mkdir()
    results = await measure(
        lambda: Site(tmp_path / "site", out, CPU, program, demo_model.base),
        Results(), facts, out, deadline=time.monotonic() + 3600, say=lines.append,
        stages=[replace(stage, seconds=600.0) for stage in STAGES],
    )  # fmt: skip
    states = {name: stage.status for name, stage in results.stages.items()}
    assert states == dict.fromkeys(["engine", *(stage.name for stage in STAGES)], "complete"), lines
    assert Results.read(out / FILE) == results
    assert facts["engine"] == facts["versions"]["vllm-cpu"]

    # Compiled kernels would be another mode of the same engine: it was started twice.
    assert [start["mode"] for start in results.rounds("engine")][-1] == "eager"
    assert {r["adapter"] for r in results.rounds("chat") if "adapter" in r} == {
        f"{tenant}/support@v1" for tenant in ("acme", "bolt", "corgi")
    }
    assert [times.rank for times in summaries.load_times(results)] == list(CPU.ranks)
    assert len(summaries.latencies(results, "latency")) == 5
    assert {(r["unload_status"], r["request_after_status"]) for r in results.rounds("unload")} == {(200, 404)}
    assert summaries.token_weights(results)
    apart = {found.what: found.largest for found in summaries.distances(results)}
    assert apart["adapter 0, again, beside 4 requests"] < 0.001
    assert apart["adapter 0 to itself with B times 0.99"] > 0.005
    assert apart["adapter 0 to the base model"] > 0.15
    assert rendered({"CPU": results}).count(NOT_YET) == 1, "the power"
