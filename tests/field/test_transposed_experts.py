"""Experts' matrices the wrong way round, as PEFT 0.18 wrote them.

Source: vllm PR 52194, unsloth-zoo PR 618.
Sent: an adapter of a mixture's fused experts, whose lora_A has the experts' output size and whose lora_B has their
input size.
Right: refused, because vLLM 0.32 cannot load it, as transposed, and with the version of PEFT that writes it right.
Why: it was told that the adapter belongs to another base model.
"""

from __future__ import annotations

import pytest

from adapters.checks.validate import validate
from adapters.errors import RejectedError
from adapters.model import BaseModel
from tests.support.lora import lora_config, write_adapter

TEXT = {
    "hidden_size": 16,
    "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 64,
    "num_experts": 4,
    "layer_types": ["full_attention"],
}
BASE = BaseModel(
    "tiny/base", (), {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": TEXT}
)
EXPERTS = "base_model.model.model.language_model.layers.0.mlp.experts"


def adapter(directory, *, transposed: bool):
    """Of rank 2."""
    sizes = {f"{EXPERTS}.base_layer": (16, 12), EXPERTS: (6, 16)}
    tensors = {}
    for name, (size_in, size_out) in sizes.items():
        first, second = (size_out, size_in) if transposed else (size_in, size_out)
        tensors |= {
            f"{name}.lora_A.weight": ("F32", (8, first)),
            f"{name}.lora_B.weight": ("F32", (second, 8)),
        }
    config = lora_config(
        r=2, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    )
    return write_adapter(directory, config=config, tensors=tensors)


def test_they_are_told_from_those_of_another_model(tmp_path):
    validate(adapter(tmp_path / "a", transposed=False), base=BASE, max_rank=8, max_bytes=10_000_000)
    with pytest.raises(RejectedError) as refused:
        validate(adapter(tmp_path / "b", transposed=True), base=BASE, max_rank=8, max_bytes=10_000_000)
    assert len(refused.value.findings) == 2
    for finding in refused.value.findings:
        assert finding.code == "shape_mismatch"
        assert "PEFT 0.19" in finding.remedy
