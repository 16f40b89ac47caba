"""Fields of configs that say something else than they mean.

Source: a survey of adapters in public repositories; Gemma 4 saved by transformers 5.19.
Sent: a fitting adapter whose `task_type` is SEQ_2_SEQ_LM; a Gemma 4 with `attention_k_eq_v` whose config.json was
saved again, with what its layers of full attention have of their own in `per_layer_config`.
Right: both pass, with the sizes that engines build.
Why: engines never look at the task, and the keys of Gemma 4's full attention were taken for ones of another size.
"""

from __future__ import annotations

from typing import Any

from adapters.checks.findings import Findings
from adapters.checks.shapes import base_shapes
from adapters.checks.validate import validate
from tests.support.lora import LLAMA, lora_config, write_adapter

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "attention_k_eq_v": True,
    "head_dim": 16,
    "hidden_size": 64,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 96,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "vocab_size": 128,
}


def test_the_task_of_a_fitting_adapter_does_not_matter(tmp_path):
    directory = write_adapter(tmp_path / "a", config=lora_config(task_type="SEQ_2_SEQ_LM"))
    validate(directory, base=LLAMA.base, max_rank=8, max_bytes=10_000_000)


def test_a_config_that_was_saved_again_gives_the_same_sizes():
    published = GEMMA | {"global_head_dim": 32, "num_global_key_value_heads": 1}
    again = GEMMA | {"per_layer_config": {"5": {"head_dim": 32, "num_key_value_heads": 1}}}
    for config in (
        published,
        again,
        {"text_config": again, "architectures": ["Gemma4ForConditionalGeneration"]},
    ):
        shapes = base_shapes("gemma", config, findings := Findings())
        assert shapes is not None, findings.all()
        keys = shapes.locate("model.layers.5.self_attn.k_proj") or shapes.locate(
            "model.language_model.layers.5.self_attn.k_proj"
        )
        assert keys is not None
        assert shapes.modules[keys[2]].sizes_in(5) == ((64, 32),)
        assert shapes.modules[keys[2]].sizes_in(0) == ((64, 32),)
