"""Ranks and alphas by pattern, where a pattern has `.*` in it.

Source: axolotl PR 3673.
Sent: adapters whose `rank_pattern` and `alpha_pattern` have keys such as `language_model.*`, `layers.*.mlp.*_proj`
and `.*self_attn.*`.
Right: they mean what they mean to PEFT and vLLM, the conversion writes them out as names, and what could take long
to search for is refused.
Why: PEFT and engines evaluate them, and Florin refused every one: an untrusted expression can hang a process.
"""

from __future__ import annotations

import json
import time

import pytest

from adapters.checks.findings import Findings
from adapters.checks.peft_config import check_config
from adapters.checks.validate import validate
from adapters.conversion.adapter_files import read_adapter
from adapters.conversion.merge import compress
from adapters.conversion.output import write_adapter as write_converted
from tests.support.lora import LLAMA, lora_config, lora_tensors, write_adapter

PATTERNS = {"layers.0.*_proj": 2, ".*self_attn.*": 4, "model.*v_proj": 1}


def test_an_adapter_with_them_passes_and_is_written_out_as_names(tmp_path):
    ranks = {"model.layers.0": 2, "model.layers.1": 4}
    tensors = {}
    for name, (dtype, shape) in lora_tensors().items():
        rank = next(rank for layer, rank in ranks.items() if layer in name)
        tensors[name] = (dtype, (rank, shape[1]) if "lora_A" in name else (shape[0], rank))
    config = lora_config(r=8, rank_pattern=PATTERNS, alpha_pattern={"layers.*.v_proj": 6})
    directory = write_adapter(tmp_path / "a", config=config, tensors=tensors)
    assert validate(directory, base=LLAMA.base, max_rank=8, max_bytes=10_000_000).rank == 8
    source = read_adapter(directory)
    write_converted(
        tmp_path / "out", compress(source, rank=4), source, {"command": "compress"}, replace=False
    )
    written = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert not [key for key in (*written["rank_pattern"], *written["alpha_pattern"]) if "*" in key]
    again = read_adapter(tmp_path / "out")
    for path, module in source.modules.items():
        assert again.modules[path].scaling == module.scaling
        assert again.modules[path].a.shape == module.a.shape


@pytest.mark.parametrize(
    "key",
    ["a.*", ".*.*", "ab.*cd.*ef.*gh.*ij", "(ab.*)+", "ab.*?cd", r"ab\.*cd", "a" * 300 + ".*", r"ab\d+\d+.*"],
)
def test_what_could_take_long_to_search_for_is_refused(key):
    findings = Findings()
    check_config(lora_config(rank_pattern={key: 4}), max_rank=8, fleet_ranks=(), findings=findings)
    assert "pattern_invalid" in findings


def test_hostile_patterns_over_hostile_names_take_no_time():
    keys = {f".*aa{'.*aa' * 2}.*ab{number}": 1 for number in range(64)}
    lora = check_config(lora_config(rank_pattern=keys), max_rank=8, fleet_ranks=(), findings=Findings())
    assert lora is not None
    started = time.process_time()
    for number in range(100):
        lora.rank_of("a" * 500 + str(number))
    assert time.process_time() - started < 20, "0.02 s on a quiet machine; backtracking would take months"
