"""Embeddings that were saved with one row more, for a padding token.

Source: a survey of adapters in public repositories.
Sent: an adapter trained with a padding token that the base model lacks, so that its lm_head and embeddings, saved in
full, have one row more.
Right: it is refused with the conversion, which drops the row if the tokenizer beside the adapter has nothing but
padding there, and refuses where it has a token that answers may need or where nothing says what the row is.
Why: the conversion refused every row more, so there was no way to serve an adapter that no text ever needs the row of.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from adapters.checks.validate import validate
from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.base_weights import read_base_weights
from adapters.conversion.convert import convert
from adapters.conversion.output import write_adapter as write_converted
from adapters.errors import RejectedError
from tests.support.lora import LLAMA, lora_config, write_adapter

ROWS = 64
TOKEN = {"added_tokens_decoder": {str(ROWS): {"content": "<new>"}}}


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base").mkdir()
    numbers = np.random.default_rng(1)
    weights = {
        name: numbers.standard_normal((ROWS, 16), np.float32)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    save_file(weights, tmp_path / "base" / "model.safetensors")
    (tmp_path / "base" / "config.json").write_text(json.dumps(LLAMA.config))
    return weights


def trained(directory, base, tokenizer):
    """Its change of each matrix has rank 1, and one row more."""
    numbers = np.random.default_rng(2)
    tensors = {}
    for name, old in base.items():
        change = numbers.standard_normal((ROWS, 1), np.float32) @ numbers.standard_normal((1, 16), np.float32)
        tensors[f"base_model.model.{name}"] = np.concatenate([old + change, np.full((1, 16), 9, np.float32)])
    config = lora_config(rank=1, kinds=("lm_head",), modules_to_save=["embed_tokens", "lm_head"])
    write_adapter(directory, config=config)
    save_file(tensors, directory / "adapter_model.safetensors")
    if tokenizer is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory, tensors


def test_a_row_of_padding_is_dropped(tmp_path, base):
    directory, tensors = trained(tmp_path / "a", base, {**TOKEN, "pad_token": "<new>"})
    with pytest.raises(RejectedError) as refused:
        validate(directory, base=LLAMA.base, max_rank=8, max_bytes=10_000_000)
    assert all("adapter convert" in finding.remedy for finding in refused.value.findings)
    source = read_adapter(directory)
    result = convert(source, read_base_weights(tmp_path / "base"), rank=1)
    write_converted(tmp_path / "out", result, source, {"command": "convert"}, replace=False)
    validate(tmp_path / "out", base=LLAMA.base, max_rank=8, max_bytes=10_000_000)
    for path, module in read_adapter(tmp_path / "out").modules.items():
        change = module.factors().dense()
        expected = tensors[f"base_model.model.{path}.weight"][:ROWS] - base[f"{path}.weight"]
        assert np.allclose(change.T if module.embedding else change, expected, atol=1e-5)


@pytest.mark.parametrize("tokenizer", [TOKEN, None])
def test_a_row_that_may_be_needed_is_not(tmp_path, base, tokenizer):
    directory, _ = trained(tmp_path / "a", base, tokenizer)
    with pytest.raises(RejectedError) as refused:
        convert(read_adapter(directory), read_base_weights(tmp_path / "base"), rank=1)
    assert {finding.code for finding in refused.value.findings} == {"shape_mismatch"}
