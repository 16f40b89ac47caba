"""Writes the smallest LoRA adapter that passes Florin's checks, and its base model's config."""

from __future__ import annotations

import json
import struct
from pathlib import Path

BASE = "bench-base"
_HIDDEN = 16
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def write_base_config(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(_CONFIG))
    return path


def write_adapter(directory: Path, seed: int = 1) -> Path:
    """Write a rank-1 adapter of `q_proj`; `seed` determines its content."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE,
        "r": 1,
        "lora_alpha": 1,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj"],
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    size = _HIDDEN * 4
    header = {
        f"{module}.lora_A.weight": {"dtype": "F32", "shape": [1, _HIDDEN], "data_offsets": [0, size]},
        f"{module}.lora_B.weight": {"dtype": "F32", "shape": [_HIDDEN, 1], "data_offsets": [size, 2 * size]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    weights = struct.pack(f"<{2 * _HIDDEN}f", *[float(seed)] * (2 * _HIDDEN))
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + weights)
    return directory
