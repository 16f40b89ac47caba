"""What is learnt from the weights themselves, and that reading them takes little memory."""

from __future__ import annotations

import math
import os
import tracemalloc

import pytest

from adapters.checks import weights
from adapters.checks.findings import Findings
from adapters.checks.lora_config import LoraConfig
from adapters.checks.peft_config import check_config
from adapters.checks.safetensors_header import read_header
from adapters.checks.tensors import module_of
from adapters.checks.weights import check_weights, magnitudes
from tests.support.lora import LLAMA, lora_config, lora_tensors, safetensors_bytes, with_value

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"


def lora(**changes) -> LoraConfig:
    made = check_config(lora_config(**changes), max_rank=64, fleet_ranks=(), findings=Findings())
    assert made
    return made


def found(largest: dict[str, float], config: LoraConfig | None = None, base=LLAMA.config) -> set[str]:
    findings = Findings()
    paths = {module[0] for name in largest if (module := module_of(name))}
    check_weights(largest, lora=config or lora(), paths=paths, base_config=base, findings=findings)
    return {finding.code for finding in findings.all()}


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.5, 2.0**-14, 65280.0, math.inf, -math.inf, math.nan])
def test_the_largest_weight_is_found_wherever_it_stands(tmp_path, dtype, value, monkeypatch):
    monkeypatch.setattr(weights, "_CHUNK_BYTES", 16)
    tensors = {"a": (dtype, (3,)), "b": (dtype, (4, 16)), "c": (dtype, (5,))}
    path = tmp_path / "weights"
    for at in (0, 31, 63, None):
        path.write_bytes(with_value(with_value(safetensors_bytes(tensors), "b", 0.0), "b", value, at))
        largest = magnitudes(path, read_header(path))["b"]
        assert (largest == abs(value)) or (math.isnan(value) and math.isnan(largest)), at


def test_progress_is_told_up_to_the_last_byte(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(safetensors_bytes({"a": ("F32", (512, 1024)), "b": ("I32", (7,)), "c": ("F16", (3,))}))
    told = []
    magnitudes(path, read_header(path), lambda *what: told.append(what))
    assert told[-1] == ("check", 512 * 1024 * 4 + 6, 512 * 1024 * 4 + 6)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_large_file_is_read_in_little_memory(tmp_path):
    path = tmp_path / "sparse"
    text = b'{"a": {"dtype": "BF16", "shape": [8192, 4096], "data_offsets": [0, 67108864]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + 2**26)
    tracemalloc.start()
    try:
        assert magnitudes(path, read_header(path)) == {"a": 0.0}
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(safetensors_bytes({"a": ("F32", (64,))}))
    header = read_header(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(OSError, match="ends within"):
        magnitudes(path, header)


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        (lora(lora_alpha=8), 2.0),
        (lora(lora_alpha=8, use_rslora=True), 4.0),
        (lora(lora_alpha=8, rank_pattern={"q_proj": 16}), 0.5),
        (lora(lora_alpha=8, alpha_pattern={"layers.0.self_attn.q_proj": 2}), 0.5),
        (lora(lora_alpha=8, alpha_pattern={"layers.1.self_attn.q_proj": 2}), 2.0),
        (lora(lora_alpha=8, rank_pattern={"q_proj": 16}, use_rslora=True), 2.0),
    ],
)
def test_the_scaling_is_that_of_peft_and_engines(config, scaling):
    assert config.scaling_of("model.layers.0.self_attn.q_proj") == scaling


def test_what_engines_would_make_infinite_is_refused():
    fits = {A: 60_000.0, B: 30_000.0}
    assert found(fits) == set()  # alpha / rank is 2
    assert found(fits | {B: 33_000.0}) == {"weights_overflow"}
    assert found(fits | {A: 66_000.0}) == {"weights_overflow"}
    bfloat16 = {**LLAMA.config, "torch_dtype": "bfloat16"}
    assert found(fits | {B: 33_000.0}, base=bfloat16) == set()
    assert found(fits | {B: 2e38}, base=bfloat16) == {"weights_overflow"}
    assert found(fits | {B: 33_000.0}, base={"text_config": {"dtype": "bfloat16"}}) == set()


def test_an_adapter_that_changes_nothing_is_refused_and_a_module_that_does_is_told():
    other = B.replace("q_proj", "v_proj"), A.replace("q_proj", "v_proj")
    assert found({A: 1.0, B: 0.0}) == {"no_effect"}
    assert found({A: 0.0, B: 1.0}) == {"no_effect"}
    assert found({A: 1.0, B: 0.0} | dict.fromkeys(other, 1.0)) == {"module_without_effect"}
    assert found({A: 1.0, B: 1e-30}) == set()


def test_a_scaling_that_no_training_uses_is_told():
    largest = dict.fromkeys(lora_tensors(), 0.01)
    assert found(largest, lora(lora_alpha=8)) == set()
    assert found(largest, lora(lora_alpha=4000)) == {"scaling_extreme"}
    assert found(largest, lora(lora_alpha=0.0001)) == {"scaling_extreme"}
    assert found(largest, lora(lora_alpha=8, alpha_pattern={"v_proj": 4000})) == {"scaling_extreme"}
