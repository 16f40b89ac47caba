"""The base model and the adapters that are measured: the shape of a real model, weights drawn at random."""

from __future__ import annotations

import json
import math
import shutil
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SERVED_NAME = "measured-base"
TILE = 1 << 20
"""Random numbers that are drawn; the rest repeats them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Names are those of transformers' LlamaConfig."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int

    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Those of one decoder layer: inputs and outputs."""
        hidden, inner = self.hidden_size, self.intermediate_size
        keys = hidden // self.num_attention_heads * self.num_key_value_heads
        return {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden, keys),
            "self_attn.v_proj": (hidden, keys),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (hidden, inner),
            "mlp.up_proj": (hidden, inner),
            "mlp.down_proj": (inner, hidden),
        }


LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128_256)
TINY = Shape(128, 352, 2, 4, 4, 512)
"""That of the demo's model."""


def write_base(directory: Path, shape: Shape, demo: Path, *, max_length: int) -> Path:
    """Write a model's directory without weights. `demo`: the demo's model, for its tokenizer."""
    directory.mkdir(parents=True)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo / name, directory)
    tokenizer = json.loads((demo / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    # Tokens that no text is split into, but that a random model answers with.
    vocabulary |= {f" t{number}": number for number in range(len(vocabulary), shape.vocab_size)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = asdict(shape) | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "max_position_embeddings": max_length, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": False, "eos_token_id": 0, "bos_token_id": None, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_adapter(directory: Path, shape: Shape, rank: int, *, seed: int, scale: float = 1.0) -> Path:
    """Write a LoRA of all linear layers in bfloat16. `scale` multiplies every `B`."""
    directory.mkdir(parents=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": SERVED_NAME, "r": rank,
        "lora_alpha": 2 * rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": [name.rpartition(".")[2] for name in shape.linear_layers()],
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(config))
    tile = np.random.default_rng(seed).standard_normal(TILE, dtype=np.float32)
    header: dict[str, object] = {}
    tensors: list[tuple[int, float]] = []
    end = 0
    for layer in range(shape.num_hidden_layers):
        for name, (inputs, outputs) in shape.linear_layers().items():
            # So that what it adds is a fifth of what the layer computes.
            deviations = (1 / math.sqrt(inputs), 0.1 * scale / math.sqrt(rank))
            for letter, dimensions, deviation in zip(
                "AB", ((rank, inputs), (outputs, rank)), deviations, strict=True
            ):
                begin, end = end, end + 2 * math.prod(dimensions)
                module = f"base_model.model.model.layers.{layer}.{name}.lora_{letter}.weight"
                header[module] = {"dtype": "BF16", "shape": dimensions, "data_offsets": (begin, end)}
                tensors.append((math.prod(dimensions), deviation))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (count, deviation) in enumerate(tensors):
            file.write(bfloat16(np.resize(np.roll(tile, number * 4099), count) * np.float32(deviation)))
    return directory


def bfloat16(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    """Rounded to nearest; the numbers are finite."""
    return ((values.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype("<u2").tobytes()
