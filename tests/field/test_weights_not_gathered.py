"""Adapter files that DeepSpeed ZeRO-3 left without weights.

Source: a survey of adapters in public repositories.
Sent: an adapter_model.safetensors without any tensor, and one whose tensors all have the shape [0].
Right: refused, with the advice to gather the weights before saving, and how; by `adapter convert` too.
Why: the advice was to save the adapter itself, or to copy the file again, and neither helps.
"""

from __future__ import annotations

import pytest

from adapters.checks.validate import validate
from adapters.conversion.adapter_files import read_adapter
from adapters.errors import RejectedError
from tests.support.lora import LLAMA, lora_tensors, write_adapter


@pytest.mark.parametrize(
    ("tensors", "code"),
    [({}, "no_tensors"), (dict.fromkeys(lora_tensors(), ("F32", (0,))), "weights_not_gathered")],
)
def test_the_advice_is_to_gather_them(tmp_path, tensors, code):
    directory = write_adapter(tmp_path / "a", tensors=tensors)
    with pytest.raises(RejectedError) as refused:
        validate(directory, base=LLAMA.base, max_rank=8, max_bytes=10_000_000)
    (finding,) = refused.value.findings
    assert finding.code == code
    assert "stage3_gather_16bit_weights_on_model_save" in finding.remedy


def test_the_conversion_says_it_too(tmp_path):
    directory = write_adapter(tmp_path / "a", tensors=dict.fromkeys(lora_tensors(), ("F32", (0,))))
    with pytest.raises(RejectedError) as refused:
        read_adapter(directory)
    assert "stage3_gather_16bit_weights_on_model_save" in refused.value.findings[0].remedy
