"""A base model is compared by what identifies it, and a path's last folder seldom does.

Source: a survey of adapters in public repositories.
Sent: adapters whose `base_model_name_or_path` is a path of the trainer's machine that ends in `/default/1`, `v1`,
`instruct`, `8b-instruct`, `weights` or `snapshot`, for a base model whose own path ends in the same.
Right: they pass with a warning that the name does not say which model it is; a path that does say it is compared by
what says it, and refused if that is another model.
Why: the last component alone made every model under `…/default/1` the same, without a word.
"""

from __future__ import annotations

import pytest

from adapters.checks.base_name import check_base_name
from adapters.checks.findings import Findings
from adapters.model import BaseModel

LLAMA = BaseModel("meta-llama/Llama-3.1-8B-Instruct", (), {})


def codes(named: str, base: BaseModel) -> list[str]:
    findings = Findings()
    check_base_name({"base_model_name_or_path": named}, base, findings)
    return [finding.code for finding in findings.all()]


@pytest.mark.parametrize(
    "end",
    ["default/1", "v1", "instruct", "8b-instruct", "weights", "snapshot", "checkpoint-500", "0a1b2c3d4e"],
)
def test_a_path_that_names_no_model_is_a_warning(end):
    base = BaseModel("chat", (f"/srv/models/llama/{end}",), {})
    assert codes(f"/kaggle/input/qwen/{end}", base) == ["base_unsure"]
    assert codes(f"/kaggle/input/qwen/{end}", LLAMA) == ["base_unsure"]
    assert codes(f"/srv/models/llama/{end}", base) == []
    assert codes(f"/mnt/llama/{end}", base) == []


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ("/workspace/Llama-3.1-8B-Instruct/", None),
        ("unsloth/llama-3.1-8b-instruct", None),
        ("/workspace/Qwen3-8B", "base_mismatch"),
        ("meta-llama/Llama-3.1-8B", "base_mismatch"),
        ("acme/base", "base_mismatch"),  # a name on the Hub is the name of one model
        ("./model", "base_unsure"),
    ],
)
def test_a_name_that_identifies_a_model_is_compared(named, code):
    assert codes(named, LLAMA) == ([code] if code else [])
