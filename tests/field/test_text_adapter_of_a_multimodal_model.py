"""An adapter of a language model alone, for a multimodal model around it.

Source: vLLM 0.33's notes (it finds `language_model.` and `llm.` itself), and adapters of Qwen3.5 in public repositories.
Sent: an adapter that names `model.layers.0…`, for `Qwen3_5ForConditionalGeneration`, whose layers are in
`model.language_model.layers`.
Right: vLLM 0.32 ignores modules of these names, and 0.33 finds them. So it is accepted for engines of 0.33 alone, with a
warning. Without one that takes its rank it is refused, with the conversion that renames them; its result passes and
changes the same weights.
Why: it was told that the adapter belongs to another base model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.checks.validate import AdapterFacts, validate
from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.convert import convert
from adapters.conversion.output import write_adapter as write_converted
from adapters.errors import RejectedError
from adapters.model import BaseModel
from tests.support.lora import lora_config, lora_tensors, write_adapter

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 64,
        "layer_types": ["full_attention", "full_attention"],
    },
}
BASE = BaseModel("tiny/base", (), CONFIG)


def adapter_of_the_language_model(directory: Path) -> Path:
    return write_adapter(
        directory, config=lora_config(kinds=("up_proj",)), tensors=lora_tensors(kinds=("up_proj",))
    )


def checked(directory: Path, *, text_rank: int | None = 0, base: BaseModel = BASE) -> AdapterFacts:
    return validate(directory, base=base, max_rank=8, max_bytes=10_000_000, text_rank=text_rank)


@pytest.mark.parametrize(
    ("text_rank", "engine"),
    [(0, "vLLM 0.33 or later"), (2, "vLLM 0.33 or later that takes rank 4")],
    ids=["none", "ranks too low"],
)
def test_without_an_engine_that_finds_its_modules_it_is_refused(tmp_path, text_rank, engine):
    with pytest.raises(RejectedError) as refused:
        checked(adapter_of_the_language_model(tmp_path / "a"), text_rank=text_rank)
    (finding,) = refused.value.findings
    assert finding.code == "module_not_in_base"
    assert "model.language_model.layers.0.mlp.up_proj" in finding.expected
    assert finding.expected.endswith(engine)
    assert "adapter convert" in finding.remedy


IDEFICS = BaseModel(
    "tiny/base",
    (),
    {**CONFIG, "architectures": ["Idefics3ForConditionalGeneration"]}
    | {"text_config": CONFIG["text_config"] | {"model_type": "llama"}},
)


@pytest.mark.parametrize("text_rank", [8, None], ids=["there is one", "the fleet is unknown"])
@pytest.mark.parametrize("base", [BASE, IDEFICS], ids=["Qwen3.5", "Idefics 3"])
def test_with_one_it_is_for_such_engines_alone(tmp_path, text_rank, base):
    facts = checked(adapter_of_the_language_model(tmp_path / "a"), text_rank=text_rank, base=base)
    assert (facts.min_vllm, facts.modules) == ("0.33", ("up_proj",))
    assert [(w.code, w.severity) for w in facts.warnings] == [("text_names", "warning")]


def test_vllm_looks_for_no_other_names(tmp_path):
    doubled = {
        name.replace("model.layers", "model.model.layers"): values
        for name, values in lora_tensors(kinds=("up_proj",)).items()
    }
    directory = write_adapter(tmp_path / "a", config=lora_config(kinds=("up_proj",)), tensors=doubled)
    with pytest.raises(RejectedError, match="Engines cannot adapt"):
        checked(directory, text_rank=8)


def test_the_conversion_renames_its_modules(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    weights = {
        f"model.language_model.layers.{layer}.mlp.up_proj.weight": np.ones((24, 16), np.float32)
        for layer in (0, 1)
    }
    save_file(weights, base / "model.safetensors")
    (base / "config.json").write_text(json.dumps(CONFIG))
    source = read_adapter(adapter_of_the_language_model(tmp_path / "a"))
    result = convert(source, read_base_weights(base))
    write_converted(tmp_path / "out", result, source, {"command": "convert"}, replace=False)
    assert checked(tmp_path / "out").min_vllm == ""
    old = load_file(tmp_path / "a" / "adapter_model.safetensors")
    new = load_file(tmp_path / "out" / "adapter_model.safetensors")
    for name, values in old.items():
        renamed = name.replace("model.layers", "model.language_model.layers")
        assert np.array_equal(new[renamed], values)
