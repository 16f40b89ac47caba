"""Tiny LoRA adapters for tests, written byte by byte, and the base models that they fit."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.model import BaseModel

BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I8": 1, "I32": 4}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name → (dtype, shape)."""


@dataclass(frozen=True)
class Family:
    """A base model and, written out by hand, what its modules measure: (in, out)."""

    name: str
    config: dict[str, Any]
    modules: dict[str, tuple[int, int]]
    root: str = "model"
    layers: int = 2
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def base(self) -> BaseModel:
        return BaseModel("tiny/base", ("/models/tiny-base",), self.config)


def _llama_like(**sizes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        **sizes,
    }


def _split(q: int, kv: int, hidden: int = 16, inner: int = 24) -> dict[str, tuple[int, int]]:
    return {
        "self_attn.q_proj": (hidden, q),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (q, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }


_EMBEDDINGS = {"model.embed_tokens": (64, 16), "lm_head": (16, 64)}
_GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
    },
}

LLAMA = Family(
    "llama",
    _llama_like(architectures=["LlamaForCausalLM"], model_type="llama"),
    _split(16, 8),
    outside=_EMBEDDINGS,
)

FAMILIES = (
    LLAMA,
    Family(
        "llama by its model_type alone", _llama_like(model_type="llama"), _split(16, 8), outside=_EMBEDDINGS
    ),
    Family(
        "llama with head_dim",
        _llama_like(architectures=["LlamaForCausalLM"], head_dim=8),
        _split(32, 16),
        outside=_EMBEDDINGS,
    ),
    Family(
        "llama with nulls",
        _llama_like(architectures=["LlamaForCausalLM"], head_dim=None, num_key_value_heads=None),
        _split(16, 16),
        outside=_EMBEDDINGS,
    ),
    Family(
        "mistral",
        {
            "architectures": ["MistralForCausalLM"],
            "hidden_size": 32,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 16,
            "vocab_size": 64,
        },
        _split(32, 16, hidden=32),
    ),
    Family("qwen2", _llama_like(architectures=["Qwen2ForCausalLM"], head_dim=8), _split(16, 8)),
    Family("qwen3", _llama_like(architectures=["Qwen3ForCausalLM"]), _split(512, 256), outside=_EMBEDDINGS),
    Family("gemma", _llama_like(architectures=["GemmaForCausalLM"]), _split(1024, 512)),
    Family("gemma2", _llama_like(architectures=["Gemma2ForCausalLM"], head_dim=8), _split(32, 16)),
    Family(
        "phi3",
        _llama_like(architectures=["Phi3ForCausalLM"]),
        {
            "self_attn.qkv_proj": (16, 32),
            "self_attn.o_proj": (16, 16),
            "mlp.gate_up_proj": (16, 48),
            "mlp.down_proj": (24, 16),
        },
        outside=_EMBEDDINGS,
    ),
    Family("gemma3, new names", _GEMMA3, _split(2048, 1024), root="model.language_model"),
    Family("gemma3, old names", _GEMMA3, _split(2048, 1024), root="language_model.model"),
)


def lora_tensors(
    family: Family = LLAMA,
    *,
    rank: int = 4,
    kinds: tuple[str, ...] = ("q_proj", "v_proj"),
    layers: tuple[int, ...] = (0, 1),
    dtype: str = "F32",
) -> Tensors:
    """What PEFT would save for modules of these kinds."""
    tensors: Tensors = {}
    for module, (size_in, size_out) in family.modules.items():
        if module.rpartition(".")[2] in kinds:
            for layer in layers:
                path = f"base_model.model.{family.root}.layers.{layer}.{module}"
                tensors[f"{path}.lora_A.weight"] = (dtype, (rank, size_in))
                tensors[f"{path}.lora_B.weight"] = (dtype, (size_out, rank))
    for module, (size_in, size_out) in family.outside.items():
        if module.rpartition(".")[2] in kinds:
            embedding = module.endswith("embed_tokens")
            a, b = (
                ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
            )
            tensors[f"base_model.model.{module}.{a}"] = (dtype, (rank, size_in))
            tensors[f"base_model.model.{module}.{b}"] = (dtype, (size_out, rank))
    return tensors


def lora_config(
    *, rank: int = 4, kinds: tuple[str, ...] = ("q_proj", "v_proj"), **more: Any
) -> dict[str, Any]:
    """What PEFT writes into adapter_config.json, shortened."""
    return {
        "alpha_pattern": {},
        "base_model_name_or_path": "tiny/base",
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": list(kinds),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
        **more,
    }


def safetensors_bytes(tensors: Tensors, *, fill: int = 0) -> bytes:
    """Every other `fill` below 60 gives other weights, all of them finite and none of them zero."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + bytes([0x3C ^ fill % 0x3C]) * position


def with_value(raw: bytes, name: str, value: float, at: int | None = None) -> bytes:
    """A safetensors file in which tensor `name` holds `value`: everywhere, or in element `at` alone."""
    length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + length])[name]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    one = element(entry["dtype"], value)
    if at is None:
        return raw[:begin] + one * ((end - begin) // len(one)) + raw[end:]
    begin += at * len(one)
    return raw[:begin] + one + raw[begin + len(one) :]


def element(dtype: str, value: float) -> bytes:
    """One weight as it stands in a file; bfloat16 is the upper half of a float32."""
    match dtype:
        case "F16":
            return struct.pack("<e", value)
        case "BF16":
            return struct.pack("<f", value)[2:]
        case "F32":
            return struct.pack("<f", value)
    return bytes(BYTES[dtype])


def write_adapter(
    directory: Path,
    *,
    config: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    fill: int = 0,
) -> Path:
    """A directory with both files; what is not given is a sound adapter of LLAMA of rank 4."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(lora_config() if config is None else config))
    weights = safetensors_bytes(lora_tensors() if tensors is None else tensors, fill=fill)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return directory
