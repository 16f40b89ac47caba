"""Records which layers of published models have which linear modules: `python record_layers.py OUT`, in the
engines' environment. transformers builds each model from its config.json on the meta device.
transformers 5.19 made what is kept in layers.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")

GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "num_hidden_layers": 40,
    "vocab_size": 100352,
}  # fmt: skip
MIXED = ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)]
JAMBA = {
    "architectures": ["JambaForCausalLM"], "model_type": "jamba", "attn_layer_offset": 4, "attn_layer_period": 8,
    "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_size": 4096, "intermediate_size": 14336,
    "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "num_attention_heads": 32, "num_experts": 16,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 65536,
}  # fmt: skip
SLIDING = [*["sliding_attention"] * 4, "full_attention"]
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "global_head_dim": 512, "vocab_size": 262144,
}  # fmt: skip
DEEPSEEK = {
    "kv_lora_rank": 512, "moe_layer_freq": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip

PUBLISHED: dict[str, dict[str, Any]] = {
    "Jamba-v0.1": JAMBA,
    "Jamba without experts": JAMBA | {"num_experts": 1, "num_hidden_layers": 16},
    "granite-4.0-h-tiny": GRANITE | {
        "hidden_size": 1536, "intermediate_size": 512, "layer_types": MIXED, "mamba_n_heads": 48,
        "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 64, "shared_intermediate_size": 1024,
    },
    "granite-4.0-h-micro": GRANITE | {
        "hidden_size": 2048, "intermediate_size": 8192, "layer_types": MIXED, "mamba_n_heads": 64,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 0, "shared_intermediate_size": 8192,
    },
    "granite-4.0-micro": GRANITE | {
        "hidden_size": 2560, "intermediate_size": 8192, "layer_types": ["attention"] * 40, "mamba_n_heads": 80,
        "num_attention_heads": 40, "num_key_value_heads": 8, "num_local_experts": 0, "shared_intermediate_size": 8192,
    },
    "DeepSeek-V2-Lite": DEEPSEEK | {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_attention_heads": 16, "num_hidden_layers": 27, "num_key_value_heads": 16,
        "q_lora_rank": None, "vocab_size": 102400,
    },
    "DeepSeek-V3": DEEPSEEK | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "first_k_dense_replace": 3,
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "q_lora_rank": 1536, "vocab_size": 129280,
    },
    "GLM-4.5-Air": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "first_k_dense_replace": 1,
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96, "num_hidden_layers": 46,
        "num_key_value_heads": 8, "vocab_size": 151552,
    },
    "ERNIE-4.5-21B-A3B": {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 2560,
        "intermediate_size": 12288, "moe_intermediate_size": 1536, "moe_layer_end_index": 27, "moe_layer_interval": 1,
        "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "num_attention_heads": 20,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 103424,
    },
    "Llama-4-Maverick": {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "head_dim": 128, "hidden_size": 5120, "interleave_moe_layer_step": 2,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_attention_heads": 40,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128, "vocab_size": 202048,
        },
        "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 1},
    },
    "Qwen3-Next-80B-A3B": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "decoder_sparse_step": 1,
        "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mlp_only_layers": [], "moe_intermediate_size": 512,
        "num_attention_heads": 16, "num_experts": 512, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512, "vocab_size": 151936,
    },
    "Gemma 4 with shared keys": GEMMA4 | {
        "head_dim": 256, "hidden_size": 1536, "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
        "layer_types": SLIDING * 6, "num_attention_heads": 8, "num_hidden_layers": 30, "num_key_value_heads": 1,
        "num_kv_shared_layers": 15, "use_double_wide_mlp": True,
    },
    "Gemma 4 with keys as values": GEMMA4 | {
        "attention_k_eq_v": True, "head_dim": 256, "hidden_size": 5376, "hidden_size_per_layer_input": 0,
        "intermediate_size": 21504, "layer_types": SLIDING * 2,
        "num_attention_heads": 32, "num_global_key_value_heads": 4, "num_hidden_layers": 10, "num_key_value_heads": 16,
        "num_kv_shared_layers": 0,
    },
    "Qwen3-MoE with plain layers": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 2, "head_dim": 128,
        "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [1, 2], "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_experts": 128, "num_hidden_layers": 12, "num_key_value_heads": 4,
        "vocab_size": 151936,
    },
}  # fmt: skip
"""The fields of config.json that tell sizes and layers."""


def recorded(config: dict[str, Any]) -> dict[str, Any]:
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(made)
    modules: dict[str, dict[str, list[int]]] = {}
    experts: dict[str, list[int]] = {}
    for path, module in model.named_modules():
        number = _NUMBER.search(path)
        if number is None or "vision" in path:
            continue
        pattern, layer = _NUMBER.sub("*", path), int(number[0])
        if isinstance(module, torch.nn.Linear):
            sizes = f"{module.in_features} {module.out_features}"
            modules.setdefault(pattern, {}).setdefault(sizes, []).append(layer)
        elif path.endswith((".experts", ".block_sparse_moe")):
            experts.setdefault(pattern.removesuffix(".experts") + ".experts", []).append(layer)
    return {"config": config, "modules": modules, "experts": experts}


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(recorded(config))}" for name, config in PUBLISHED.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n")
