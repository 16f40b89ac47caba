"""Architectures whose layers differ by index: the rule that tells how, and configs that show every kind.

Rules are those of `adapters.checks.layers`. What they say is compared with the layers that the libraries
build when the table is generated, and again by `deploy.architectures.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layered:
    rules: dict[str, str]
    """Trait → rule."""
    variants: tuple[dict[str, Any], ...] = ()
    """Fields of the language model's config, beside those of the default, that make other layers."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """What the rules' fields are if config.json omits them and transformers' class does not declare them."""
    part: str = ""
    """Where the language model's config is: `text_config`."""


FIELDS = {
    "types": (),
    "blocks": (),
    "attention_period": ("attn_layer_period", "attn_layer_offset"),
    "expert_period": ("expert_layer_period", "expert_layer_offset", "num_experts"),
    "first_dense": ("first_k_dense_replace", "num_dense_layers"),
    "mlp_types": ("first_k_dense_replace",),
    "sparse_step": ("decoder_sparse_step",),
    "interval": ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
    "interleaved": ("interleave_moe_layer_step",),
    "any_experts": ("num_local_experts",),
    "query": ("q_lora_rank",),
}
"""Rule → the fields whose defaults are those of transformers' class."""

_LINEAR, _FULL = "linear_attention", "full_attention"
_MIXED = [_LINEAR, _FULL, _FULL, _LINEAR, _LINEAR, _LINEAR, _LINEAR, _FULL]
_PLAIN_FIRST = ["dense", "sparse", "dense", *["sparse"] * 5]

_JAMBA = Layered(
    {"mixer": "attention_period", "mlp": "expert_period"},
    (
        {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 0,
        },
    ),
)
_QWEN_MOE = Layered({"mlp": "sparse_step"}, ({"mlp_only_layers": [0, 3]}, {"decoder_sparse_step": 2}))
_QWEN_HYBRID = Layered(
    {"mixer": "types"}, ({"layer_types": _MIXED},), defaults={"full_attention_interval": 4}
)
_FIRST_DENSE = Layered({"mlp": "first_dense"}, ({"first_k_dense_replace": 2},))
_EXAONE = Layered({"mlp": "mlp_types"}, ({"mlp_layer_types": _PLAIN_FIRST},))


def _inside(layered: Layered) -> Layered:
    return Layered(layered.rules, layered.variants, layered.defaults, "text_config")


LAYERED: dict[str, Layered] = {
    "AXK1ForCausalLM": _FIRST_DENSE,
    "DeepseekV2ForCausalLM": Layered(
        {"mlp": "first_dense", "query": "query"},
        ({"first_k_dense_replace": 2}, {"first_k_dense_replace": 1, "q_lora_rank": None}),
    ),
    "DeepseekV3ForCausalLM": Layered(
        {"mlp": "first_dense", "query": "query"}, ({"first_k_dense_replace": 1, "q_lora_rank": None},)
    ),
    "Ernie4_5_MoeForCausalLM": Layered(
        {"mlp": "interval"},
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 2},),
    ),
    "AfmoeForCausalLM": Layered({"mlp": "first_dense"}, ({"num_dense_layers": 3},)),
    "ExaoneMoEForCausalLM": _EXAONE,
    "ExaoneMoeForCausalLM": _EXAONE,
    "Glm4MoeForCausalLM": _FIRST_DENSE,
    "Glm4vMoeForConditionalGeneration": _inside(_FIRST_DENSE),
    "GraniteMoeHybridForCausalLM": Layered(
        {"mixer": "types", "mlp": "any_experts"},
        ({"layer_types": _MIXED}, {"layer_types": _MIXED, "num_local_experts": 0}),
    ),
    "JambaForCausalLM": _JAMBA,
    "JambaForSequenceClassification": _JAMBA,
    "LagunaForCausalLM": Layered(
        {"mlp": "mlp_types"}, ({"mlp_layer_types": _PLAIN_FIRST},), {"first_k_dense_replace": 1}
    ),
    "Llama4ForCausalLM": Layered({"mlp": "interleaved"}, ({"interleave_moe_layer_step": 2},)),
    "Llama4ForConditionalGeneration": _inside(
        Layered({"mlp": "interleaved"}, ({"interleave_moe_layer_step": 2},))
    ),
    "MellumForCausalLM": Layered({"mlp": "mlp_types"}, ({"mlp_layer_types": _PLAIN_FIRST},)),
    "MiniCPMV4_6ForConditionalGeneration": _inside(_QWEN_HYBRID),
    "MiniCPMV4_7ForConditionalGeneration": _inside(_QWEN_HYBRID),
    "Qwen2MoeForCausalLM": _QWEN_MOE,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Qwen3NextForCausalLM": Layered(
        {"mixer": "types", "mlp": "sparse_step"},
        ({"layer_types": _MIXED}, {"mlp_only_layers": [0, 3, 4]}),
        {"full_attention_interval": 4},
    ),
    "Qwen3VLMoeForConditionalGeneration": _inside(_QWEN_MOE),
    "Qwen3_5ForCausalLM": _QWEN_HYBRID,
    "Qwen3_5ForConditionalGeneration": _inside(_QWEN_HYBRID),
    "Qwen3_5MoeForCausalLM": _QWEN_HYBRID,
    "Qwen3_5MoeForConditionalGeneration": _inside(_QWEN_HYBRID),
}
