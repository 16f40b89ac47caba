"""The shapes of well-known base models, written down from their config.json and their weight files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.checks.architectures import table
from adapters.checks.findings import Findings
from adapters.checks.peft_config import check_config
from adapters.checks.safetensors_header import Tensor
from adapters.checks.shapes import BaseShapes, base_shapes
from adapters.checks.tensors import check_tensors
from adapters.errors import Finding

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "num_experts": 128,
    "moe_intermediate_size": 768, "intermediate_size": 6144, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "vocab_size": 32000,
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24, "num_local_experts": 32,
    "vocab_size": 201088,
}  # fmt: skip
QWEN25_VL = {  # as it was published: the language model's fields at the top
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "vision_config": {"hidden_size": 1280},
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
    },
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
    "num_hidden_layers": 27, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
LLAVA_QWEN = {
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    },
}  # fmt: skip
SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 202048,
    },
}  # fmt: skip


def shapes_of(config: dict[str, Any]) -> BaseShapes:
    findings = Findings()
    shapes = base_shapes("base", config, findings)
    assert shapes, findings.all()
    return shapes


@pytest.mark.parametrize(
    ("config", "path", "sizes"),
    [
        (QWEN3_MOE, "model.layers.47.self_attn.q_proj", (2048, 4096)),
        (QWEN3_MOE, "model.layers.0.self_attn.k_proj", (2048, 512)),
        (QWEN3_MOE, "model.layers.0.mlp.experts.127.gate_proj", (2048, 768)),
        (QWEN3_MOE, "model.layers.0.mlp.experts.0.down_proj", (768, 2048)),
        (QWEN3_MOE, "model.layers.0.mlp.gate", (2048, 128)),
        (MIXTRAL, "model.layers.0.self_attn.v_proj", (4096, 1024)),
        (GPT_OSS, "model.layers.0.self_attn.q_proj", (2880, 4096)),
        (GPT_OSS, "model.layers.23.self_attn.o_proj", (4096, 2880)),
        (GPT_OSS, "model.layers.0.mlp.experts.base_layer", (2880, 5760)),
        (GPT_OSS, "model.layers.0.mlp.experts", (2880, 2880)),
        (QWEN25_VL, "model.language_model.layers.0.mlp.down_proj", (18944, 3584)),
        (QWEN25_VL, "model.layers.0.self_attn.k_proj", (3584, 512)),
        (GEMMA3, "model.language_model.layers.33.self_attn.q_proj", (2560, 2048)),
        (GEMMA3, "language_model.model.layers.0.self_attn.v_proj", (2560, 1024)),
        (DEEPSEEK, "model.layers.0.self_attn.kv_b_proj", (512, 4096)),
        (DEEPSEEK, "model.layers.0.self_attn.kv_a_proj_with_mqa", (2048, 576)),
        (LLAVA_QWEN, "language_model.model.layers.0.self_attn.k_proj", (896, 128)),
        (SCOUT, "language_model.model.layers.0.self_attn.q_proj", (5120, 5120)),
    ],
)
def test_modules_of_published_models_measure_what_their_files_do(config, path, sizes):
    shapes = shapes_of(config)
    located = shapes.locate(path)
    assert located, sorted(shapes.modules)
    assert shapes.modules[located[2]].sizes == (sizes,)
    assert shapes.beyond(path, located[2]) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (QWEN3_MOE, "model.layers.0.mlp.experts.gate_up_proj"),
        (QWEN25_VL, "model.visual.blocks.0.attn.qkv"),
        (QWEN25_VL, "visual.blocks.0.mlp.gate_proj"),
        (GEMMA3, "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"),
        (QWEN3_MOE, "layers.0.self_attn.q_proj"),
    ],
)
def test_what_engines_ignore_is_not_located(config, path):
    assert shapes_of(config).locate(path) is None


def test_numbers_beyond_the_last_layer_or_expert_are_told():
    shapes = shapes_of(QWEN3_MOE)
    for path, told in (
        ("model.layers.48.self_attn.q_proj", "layers 0 to 47"),
        ("model.layers.0.mlp.experts.128.up_proj", "experts 0 to 127"),
    ):
        located = shapes.locate(path)
        assert located
        assert shapes.beyond(path, located[2]) == told


RECORDED = json.loads(Path(__file__).with_name("layers.json").read_text())


@pytest.mark.parametrize("name", RECORDED)
def test_each_layer_has_the_modules_that_transformers_gives_it(name):
    told = RECORDED[name]
    shapes = shapes_of(told["config"])
    seen = 0
    for pattern, kinds in told["modules"].items():
        at: dict[int, tuple[int, int]] = {}
        for sizes, layers in kinds.items():
            size_in, size_out = map(int, sizes.split())
            at |= dict.fromkeys(layers, (size_in, size_out))
        for layer in range(shapes.layers):
            located = shapes.locate(pattern.replace("*", str(layer)))
            if located is None:  # what engines cannot adapt
                continue
            seen += 1
            assert shapes.modules[located[2]].sizes_in(layer) == ((at[layer],) if layer in at else ()), (
                pattern,
                layer,
            )
    assert seen > shapes.layers
    experts = {kind for kinds in shapes.experts.values() for kind in kinds}
    assert {layer for kind in experts for layer in shapes.modules[kind].present()} == {
        layer for layers in told["experts"].values() for layer in layers
    }


@pytest.mark.parametrize(
    ("name", "path", "sizes", "instead"),
    [
        ("Jamba-v0.1", "model.layers.3.self_attn.q_proj", (4096, 4096), "layers 4, 12, 20, 28"),
        ("Jamba-v0.1", "model.layers.2.feed_forward.experts.0.gate_proj", (4096, 14336), "layers 1, 3, 5"),
        ("granite-4.0-h-tiny", "model.layers.0.self_attn.v_proj", (1536, 512), "layers 5, 15, 25, 35"),
        ("granite-4.0-h-tiny", "model.layers.5.mamba.out_proj", (3072, 1536), "layers 0-4, 6-14, 16-24"),
        ("DeepSeek-V3", "model.layers.3.mlp.gate_proj", (7168, 18432), "layers 0-2"),
        ("DeepSeek-V2-Lite", "model.layers.0.mlp.experts.1.up_proj", (2048, 1408), "layers 1-26"),
        ("Qwen3-MoE with plain layers", "model.layers.3.mlp.down_proj", (6144, 2048), "layers 0-2, 4, 6"),
    ],
)
def test_a_module_that_its_layer_lacks_is_refused_with_the_layers_that_have_it(name, path, sizes, instead):
    (finding, *_) = findings_of(RECORDED[name]["config"], [(path, *sizes, 4)])
    assert finding.code == "module_not_in_base"
    assert f"in layer {path.split('.')[2]}" in finding.found
    assert f"only in {instead}" in finding.expected
    assert "target_modules" in finding.remedy


def test_modules_that_the_same_layers_lack_are_told_together():
    config = RECORDED["granite-4.0-h-tiny"]["config"]
    tensors = [
        (f"model.layers.{layer}.self_attn.{leaf}", 1536, out, 4)
        for layer in (0, 1, 2, 5, 7)
        for leaf, out in (("q_proj", 1536), ("k_proj", 512), ("v_proj", 512), ("o_proj", 1536))
    ]
    (finding,) = findings_of(config, tensors)
    assert finding.found.endswith("v_proj in layers 0-2, 7")
    assert finding.found.count("self_attn") == 4


def test_what_peft_trains_of_a_mixture_with_plain_first_layers_passes():
    config = RECORDED["DeepSeek-V2-Lite"]["config"]
    plain = [
        ("model.layers.0.mlp.gate_proj", 2048, 10944, 4),
        ("model.layers.0.mlp.down_proj", 10944, 2048, 4),
    ]
    shared = [(f"model.layers.{n}.mlp.shared_experts.up_proj", 2048, 2816, 4) for n in range(1, 27)]
    query = [(f"model.layers.{n}.self_attn.q_proj", 2048, 3072, 4) for n in range(27)]
    assert found(config, plain + shared + query) == []
    swapped = [
        ("model.layers.0.mlp.gate_proj", 2048, 1408, 4),
        ("model.layers.27.self_attn.q_proj", 2048, 3072, 4),
    ]
    assert found(config, swapped) == ["shape_mismatch", "layer_out_of_range"]


def test_modules_that_no_layer_has_are_not_in_the_base():
    lite, micro = (shapes_of(RECORDED[n]["config"]) for n in ("DeepSeek-V2-Lite", "granite-4.0-micro"))
    assert lite.locate("model.layers.0.self_attn.q_a_proj") is None
    assert micro.locate("model.layers.0.mamba.in_proj") is None
    assert not micro.experts


BROKEN = {
    "a list too short": {"layer_types": ["attention"] * 39},
    "no list": {"layer_types": {"0": "mamba"}},
    "no words": {"layer_types": [5] * 40},
    "layers without end": {"num_hidden_layers": 2**24},
    "layers below none": {"num_hidden_layers": -1},
    "a size below none": {"hidden_size": -1536},
    "a size that is none": {"num_attention_heads": 0},
    "a size that is a text": {"hidden_size": "1536"},
    "a size that is a fraction": {"hidden_size": 1536.0},
    "a size beyond all": {"mamba_expand": 10**300},
    "experts below none": {"num_local_experts": -3},
    "experts as a switch": {"num_local_experts": True},
}


@pytest.mark.parametrize("what", BROKEN)
def test_rubbish_in_the_config_is_told_by_its_field(what):
    findings = Findings()
    (field,) = BROKEN[what]
    assert base_shapes("base", RECORDED["granite-4.0-h-tiny"]["config"] | BROKEN[what], findings) is None
    (finding,) = findings.all()
    assert finding.code == "base_config_invalid"
    assert field in finding.found
    assert len(finding.found) < 300


@pytest.mark.parametrize("value", [None, 0, -1, 1, 7, 2**24, 2**63, "8", [], {}, True, 0.5])
def test_no_config_of_any_architecture_is_more_than_refused(value):
    for name, row in table()["architectures"].items():
        fields = {field.rpartition(".")[2] for field in row["fields"]}
        rules = {"layer_types", "mlp_layer_types", "mlp_only_layers", "q_lora_rank", "num_kv_shared_layers"}
        rubbish = {"enable_moe_block": True, **dict.fromkeys(fields | rules, value)}
        config = {"architectures": [name], **rubbish, "text_config": rubbish}
        config["thinker_config"] = {"text_config": rubbish}
        findings = Findings()
        shapes = base_shapes("base", config, findings)
        assert (shapes is None) == bool(findings), name
        assert shapes is None or shapes.layers in (1, 7), name


def test_a_period_of_none_is_told():
    for field in ("attn_layer_period", "expert_layer_period"):
        findings = Findings()
        assert base_shapes("base", RECORDED["Jamba-v0.1"]["config"] | {field: 0}, findings) is None
        assert findings.all()[0].found == f"{field} = 0"


def test_layers_of_a_kind_that_florin_does_not_know_may_have_any_module():
    config = RECORDED["granite-4.0-h-tiny"]["config"] | {"layer_types": ["mystery"] * 40}
    assert found(config, [("model.layers.0.self_attn.v_proj", 1536, 512, 4)]) == []


QUANTIZED = {
    "AutoAWQ": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True,
    },
    "GPTQModel": {
        "bits": 4, "checkpoint_format": "gptq", "desc_act": False, "dynamic": {"-:.*mlp.gate.*": {}}, "group_size": 128,
        "lm_head": False, "meta": {"quantizer": ["gptqmodel:5.0.0"]}, "pack_dtype": "int32", "quant_method": "gptq",
        "sym": True,
    },
    "FP8 in blocks": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "llm-compressor": {
        "config_groups": {
            "group_0": {
                "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "type": "float"},
                "targets": ["Linear"],
                "weights": {"dynamic": False, "num_bits": 8, "strategy": "channel", "type": "float"},
            },
        },
        "format": "float-quantized", "ignore": ["lm_head", "re:.*mlp.gate$"], "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    },
    "bitsandbytes": {
        "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
        "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
        "llm_int8_threshold": 6.0, "load_in_4bit": True, "load_in_8bit": False, "quant_method": "bitsandbytes",
    },
}  # fmt: skip


@pytest.mark.parametrize("writer", QUANTIZED)
def test_a_quantized_base_has_the_same_modules(writer):
    quantized = {**QWEN3_MOE, "quantization_config": QUANTIZED[writer]}
    assert shapes_of(quantized) == shapes_of(QWEN3_MOE)
    assert found(quantized, [("model.layers.0.self_attn.q_proj", 2048, 4096, 4)]) == []
    packed = ("model.layers.0.self_attn.q_proj", 2048 // 8, 4096, 4)
    assert found(quantized, [packed]) == ["shape_mismatch"]


def found(config: dict[str, Any], paths: list[tuple[str, int, int, int]]) -> list[str]:
    """The codes of an adapter with these modules: path, in, out, rank."""
    return [finding.code for finding in findings_of(config, paths)]


def findings_of(config: dict[str, Any], paths: list[tuple[str, int, int, int]]) -> tuple[Finding, ...]:
    tensors = {}
    for path, size_in, size_out, rank in paths:
        tensors[f"base_model.model.{path}.lora_A.weight"] = Tensor("F32", (rank, size_in))
        tensors[f"base_model.model.{path}.lora_B.weight"] = Tensor("F32", (size_out, rank))
    lora = check_config(
        {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ".*"},
        max_rank=8,
        fleet_ranks=(),
        findings=Findings(),
    )
    assert lora
    findings = Findings()
    check_tensors(tensors, lora=lora, shapes=shapes_of(config), findings=findings)
    return findings.all()


def test_a_layers_experts_are_changed_all_or_none():
    small = {**QWEN3_MOE, "num_experts": 2}
    layer = "model.layers.0.mlp.experts"
    whole = [
        (f"{layer}.{n}.{kind}", *((768, 2048) if kind == "down_proj" else (2048, 768)), 4)
        for n in range(2) for kind in ("gate_proj", "up_proj", "down_proj")
    ]  # fmt: skip
    assert found(small, whole) == []
    assert found(small, whole[1:]) == ["tensor_unpaired"]


def test_fused_experts_share_matrices_with_a_rank_for_each():
    small = {**GPT_OSS, "num_local_experts": 2}
    layer = "model.layers.0.mlp.experts"
    both = [(f"{layer}.base_layer", 2880, 5760, 8), (layer, 2880, 2880, 8)]
    assert found(small, both) == []
    assert found(small, both[:1]) == ["tensor_unpaired"]
    assert set(found(small, [(*module[:3], 4) for module in both])) == {"shape_mismatch"}


def test_an_architecture_without_shapes_names_the_way_around():
    findings = Findings()
    assert "InternLM2ForCausalLM" in table()["unknown"]
    assert base_shapes("base", {"architectures": ["InternLM2ForCausalLM"]}, findings) is None
    (finding,) = findings.all()
    assert finding.code == "unknown_architecture"
    assert "supports LoRA" in finding.message
    assert "--unverified-shapes" in finding.expected


def test_a_multimodal_config_without_its_language_model_is_told():
    findings = Findings()
    assert base_shapes("base", {"architectures": ["Gemma3ForConditionalGeneration"]}, findings) is None
    assert [finding.code for finding in findings.all()] == ["base_config_invalid"]
    for rubbish in ([], "gemma", 3, None):
        findings = Findings()
        config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": rubbish}
        assert base_shapes("base", config, findings) is None
        assert "text_config" in findings.all()[0].found
