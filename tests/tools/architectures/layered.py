"""Architectures whose layers differ by index: the rule that tells how, and configs that show every kind.

Rules are those of `adapters.checks.layers`. What they say is compared with the layers that the libraries
build when the table is generated, and again by `tests.tools.architectures.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.tools.architectures.symbols import Formula


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
    always: dict[str, int] = field(default_factory=dict)
    """Fields for sizes that transformers' class takes but does not declare,"""
    omitted: dict[str, Formula] = field(default_factory=dict)
    """and what they are if config.json omits them."""

    def configs(self) -> list[dict[str, Any]]:
        """What each of its configs has beside the default's fields, by path."""
        return [
            {self.at(name): value for name, value in (self.always | variant).items()}
            for variant in ({}, *self.variants)
        ]

    def at(self, name: str) -> str:
        return f"{self.part}.{name}" if self.part else name


FIELDS = {
    "types": (),
    "attention_period": ("attn_layer_period", "attn_layer_offset"),
    "expert_period": ("expert_layer_period", "expert_layer_offset", "num_experts"),
    "first_dense": ("first_k_dense_replace", "num_dense_layers"),
    "mlp_types": ("first_k_dense_replace",),
    "sparse_step": ("decoder_sparse_step",),
    "interval": ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
    "interleaved": ("interleave_moe_layer_step",),
    "any_experts": ("num_local_experts",),
    "query": ("q_lora_rank",),
    "sliding": (),
    "keys_values": (),
    "width": (),
    "layer_inputs": ("hidden_size_per_layer_input",),
    "moe_block": (),
}
"""Rule → the fields whose defaults are those of transformers' class."""

_LINEAR, _FULL = "linear_attention", "full_attention"
_MIXED = [_LINEAR, _FULL, _FULL, _LINEAR, _LINEAR, _LINEAR, _LINEAR, _FULL]
_SLIDING = [*["sliding_attention", _FULL] * 2, *["sliding_attention"] * 3, _FULL]
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


_GEMMA4 = Layered(
    {
        "attention": "sliding",
        "kv": "keys_values",
        "mlp": "width",
        "inputs": "layer_inputs",
        "experts": "moe_block",
    },
    (
        {"layer_types": _SLIDING, "num_kv_shared_layers": 4, "use_double_wide_mlp": True},
        {"layer_types": _SLIDING, "num_kv_shared_layers": 4},
        {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
        {
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 704,
        },
    ),
    always={"global_head_dim": 512, "num_global_key_value_heads": 1},
    omitted={"global_head_dim": 512, "num_global_key_value_heads": "num_key_value_heads"},
)


def _inside(layered: Layered) -> Layered:
    return replace(layered, part="text_config")


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
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _inside(_GEMMA4),
    "Gemma4UnifiedForConditionalGeneration": _inside(_GEMMA4),
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
