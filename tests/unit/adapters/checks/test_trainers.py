"""What trainers write passes the checks, or is refused with what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.checks.finding_codes import CONVERT
from adapters.checks.findings import Findings
from adapters.checks.peft_config import check_config
from adapters.checks.validate import AdapterFacts, validate
from adapters.errors import Finding, RejectedError
from adapters.model import BaseModel
from tests.support.lora import LLAMA, lora_config, lora_tensors, write_adapter
from tests.support.trained import LEFT_BESIDE, RECORDED, put_beside, write_recorded

ROOT = Path(__file__).resolve().parents[4]
GUIDE = (ROOT / "docs/trainers.md").read_text()


def check(directory: Path, base: BaseModel = LLAMA.base) -> AdapterFacts:
    return validate(directory, base=base, max_rank=8, max_bytes=10_000_000)


def refused(directory: Path, base: BaseModel = LLAMA.base) -> tuple[Finding, ...]:
    with pytest.raises(RejectedError) as caught:
        check(directory, base)
    return caught.value.findings


REFUSED = {
    "DoRA": ("use_dora", CONVERT),
    "whole modules": ("modules_to_save", CONVERT),
    "single tokens": ("trainable_token_indices", CONVERT),
    "single tokens, by module": ("trainable_token_indices", CONVERT),
    "biases of LoRA": ("lora_bias", "without biases"),
    "biases": ("bias", "without biases"),
    "PiSSA": ("init_lora_weights", "path_initial_model_for_weight_conversion"),
    "OLoRA": ("init_lora_weights", "path_initial_model_for_weight_conversion"),
}
"""Recorded adapter → the field that is refused, and the remedy."""


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in REFUSED])
def test_what_libraries_wrote_passes(tmp_path, name):
    facts = check(write_recorded(tmp_path / "a", name))
    assert facts.rank == 4
    assert {w.code for w in facts.warnings} <= {"chat_template_unknown"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_engines_cannot_serve_is_refused_with_the_way_out(tmp_path, name):
    field, remedy = REFUSED[name]
    findings = refused(write_recorded(tmp_path / "a", name))
    assert findings[0].found.startswith(f"{field} = ")
    assert {f.code for f in findings} <= {"unsupported_feature", "tensor_name_invalid", "no_effect"}
    for finding in findings:
        assert remedy in finding.remedy


@pytest.mark.parametrize("trainer", LEFT_BESIDE)
def test_what_trainers_leave_beside_the_adapter_is_passed_over(tmp_path, trainer):
    directory = write_adapter(tmp_path / "a")
    put_beside(directory, LEFT_BESIDE[trainer])
    assert check(directory)


@pytest.mark.parametrize("trainer", [trainer for trainer in LEFT_BESIDE if "," not in trainer])
def test_the_guide_has_the_commands_for_each_trainer(trainer):
    (section,) = re.findall(rf"^## {trainer}\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    (lines,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = lines.strip().splitlines()
    assert len(commands) == 3
    assert commands[0].startswith("florin adapter check ")
    assert commands[1] == commands[0].replace("check", "add acme/support --upload", 1)
    assert '"model": "support"' in commands[2]


@pytest.mark.parametrize(
    ("rename", "remedy"),
    [
        (lambda n: n.replace(".weight", ".default.weight"), CONVERT),
        (lambda n: n.replace("model.layers", "_orig_mod.model.layers"), CONVERT),
        (lambda n: n.replace("self_attn.", "_checkpoint_wrapped_module.self_attn."), CONVERT),
        (lambda n: n.replace("layers.0.", "layers.0._fsdp_wrapped_module."), CONVERT),
        (lambda n: "module." + n, CONVERT),
        (lambda n: "base_model.model." + n, CONVERT),
        (
            lambda n: n.replace("lora_A", "lora_a").replace("lora_B", "lora_b"),
            "torchtune's adapter_model.safetensors",
        ),
        (lambda n: n.replace("lora_A", "lora_down").replace("lora_B", "lora_up"), "image model"),
    ],
)
def test_names_that_engines_do_not_know_are_refused_with_the_way_out(tmp_path, rename, remedy):
    tensors = {rename(name): tensor for name, tensor in lora_tensors().items()}
    findings = [
        f for f in refused(write_adapter(tmp_path / "a", tensors=tensors)) if f.code == "tensor_name_invalid"
    ]
    assert findings
    assert all(remedy in finding.remedy for finding in findings)


def test_names_without_the_prefix_pass_as_they_do_in_vllm(tmp_path):
    tensors = {name.removeprefix("base_model.model."): tensor for name, tensor in lora_tensors().items()}
    assert check(write_adapter(tmp_path / "a", tensors=tensors)).modules == ("q_proj", "v_proj")


def test_one_matrix_under_two_names_is_refused(tmp_path):
    bare = {name.removeprefix("base_model.model."): tensor for name, tensor in lora_tensors().items()}
    findings = refused(write_adapter(tmp_path / "a", tensors={**lora_tensors(), **bare}))
    assert {finding.code for finding in findings} == {"tensor_name_invalid"}


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        (("adapter_model.bin",), "weights_only=True"),
        (("adapter_0.pt",), "torchtune 0.5"),
        (("adapters.safetensors", "0000100_adapters.safetensors"), "MLX"),
        (("adapter_model.pt",), "merged model as a base"),
        (("adapter_model-00001-of-00002.safetensors",), "max_shard_size"),
        (("checkpoint-90/", "checkpoint-300/"), "checkpoint-300."),
        (("epoch_0/", "epoch_2/", "recipe_state/"), "epoch_2."),
        (("pytorch_model_fsdp_0/", "optimizer_0/"), "FULL_STATE_DICT"),
        (("global_step300/", "latest", "zero_to_fp32.py"), "zero_to_fp32.py"),
        ((), "save_pretrained"),
    ],
)
def test_an_adapter_that_is_elsewhere_or_in_another_form_is_found(tmp_path, beside, remedy):
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_model.safetensors").unlink()
    put_beside(directory, beside)
    (finding,) = [finding for finding in refused(directory) if finding.code == "file_missing"]
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model-00001-of-00002.safetensors", "whole model"),
        ("ft-model-00001-of-00002.safetensors", "whole model"),
        ("pytorch_model.bin", "whole model"),
        ("value_head.safetensors", "value head"),
    ],
)
def test_of_weights_beside_the_adapter_it_is_said_what_they_are(tmp_path, name, remedy):
    directory = write_adapter(tmp_path / "a")
    (directory / name).write_bytes(b"x")
    (finding,) = check(directory).warnings
    assert (finding.code, remedy in finding.remedy) == ("other_weights", True)


@pytest.mark.parametrize("broken", ["optimizer.pt", "training_args.bin", "rng_state_0.pth"])
def test_the_state_of_a_run_is_not_opened(tmp_path, broken):
    directory = write_adapter(tmp_path / "a")
    (directory / broken).symlink_to("/proc/self/mem")
    assert check(directory)


@pytest.mark.parametrize(
    ("base", "named"),
    [
        ("unsloth/llama-3-8b", "unsloth/llama-3-8b-bnb-4bit"),
        ("meta-llama/Llama-3.1-8B-Instruct", "unsloth/Llama-3.1-8B-Instruct-unsloth-bnb-4bit"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"),
        ("neuralmagic/Llama-3.1-8B-quantized.w4a16", "/models/Llama-3.1-8B"),
        ("nm-testing/Qwen3-8B-NVFP4A16", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B-FP8", "/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0a1b"),
    ],
)
def test_the_base_model_at_another_precision_is_told_and_not_refused(tmp_path, base, named):
    directory = write_adapter(tmp_path / "a", config=lora_config(base_model_name_or_path=named))
    (warning,) = check(directory, BaseModel(base, (), LLAMA.config)).warnings
    assert warning.code == "base_quantized"
    assert ("no bitsandbytes" in warning.remedy) == ("bnb" in named)
    assert check(directory, BaseModel(base, (named,), LLAMA.config)).warnings == ()


@pytest.mark.parametrize(
    ("base", "named"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "unsloth/Meta-Llama-3.1-8B-Instruct-unsloth-bnb-4bit"),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-4x"),
        ("acme/model", "acme/llama-awq"),
        ("acme/awq", "bolt/4bit"),
        ("acme/llama", "acme/llama-unsloth"),
    ],
)
def test_a_quantized_model_of_another_name_is_refused_with_both_ways_out(tmp_path, base, named):
    directory = write_adapter(tmp_path / "a", config=lora_config(base_model_name_or_path=named))
    (finding,) = refused(directory, BaseModel(base, (), LLAMA.config))
    assert finding.code == "base_mismatch"
    assert "--assume-base" in finding.remedy
    assert "--base-alias" in finding.remedy


def test_a_name_in_modelscopes_cache_is_the_hubs(tmp_path):
    named = "/root/.cache/modelscope/hub/models/LLM-Research/Llama-3___1-8B-Instruct"
    directory = write_adapter(tmp_path / "a", config=lora_config(base_model_name_or_path=named))
    assert check(directory, BaseModel("meta-llama/Llama-3.1-8B-Instruct", (), LLAMA.config)).warnings == ()


def test_the_patterns_of_fused_experts_name_their_weights():
    config = lora_config(
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        rank_pattern={"experts.down_proj": 2},
        alpha_pattern={"experts.gate_up_proj": 4},
    )
    lora = check_config(config, max_rank=8, fleet_ranks=(), findings=Findings())
    assert lora is not None
    experts = "model.layers.0.mlp.experts"
    assert (lora.rank_of(experts), lora.scaling_of(experts)) == (2, 4.0)
    assert (lora.rank_of(f"{experts}.base_layer"), lora.scaling_of(f"{experts}.base_layer")) == (4, 1.0)
    assert lora.targets_module(experts, 0)
    assert lora.targets_module(f"{experts}.base_layer", 0)
    assert not lora.targets_module("model.layers.0.mlp.gate", 0)


@pytest.mark.parametrize(
    "key",
    [r"(a+)+b", r"(\d+)+", "a{9}", "(a|a)*", "(a|b)(a|b)", ".*.*", r"\w+", "[a-z]+", "(?=a)", "a(", "a)", ""],
)
def test_expressions_that_could_take_long_are_not_evaluated(tmp_path, key):
    directory = write_adapter(tmp_path / "a", config=lora_config(rank_pattern={key: 4}))
    assert [finding.code for finding in refused(directory)] == ["pattern_invalid"]
