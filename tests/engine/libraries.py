"""What the engines' libraries say of themselves: their models, their requests' fields and their flags. Asked once, in one
process: most of its time goes into imports."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from adapters.checks.architectures import table
from deploy.demo.engine_env import engine_environ
from tests.support.forking import FORKED
from tests.support.forms import LONG

ROOT = Path(__file__).parents[2]
SOME = (
    "DeepseekV2ForCausalLM", "GptOssForCausalLM", "JambaForCausalLM", "LlamaForCausalLM", "Qwen2_5_VLForConditionalGeneration",
)  # fmt: skip
COMPARED = sorted(table()["architectures"]) if LONG else SOME
PROGRAM = f"""{FORKED}
import contextlib, sys
from tests.tools.architectures import compare, probe
compare.main(sys.argv[1:])
probe.main(sys.argv[1:])
with contextlib.redirect_stdout(sys.stderr):
    from tests.engine import vllm_fields
vllm_fields.main()
"""


@cache
def told_by(python: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The models of COMPARED as they are built; the rows that a table has of them; fields and flags."""
    environ = engine_environ() | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    environ["PYTHONPATH"] = f"{ROOT}:{environ['PYTHONPATH']}"
    command = [str(python), "-c", PROGRAM, *COMPARED]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    decoder, text = json.JSONDecoder(), done.stdout.lstrip()
    documents: list[dict[str, Any]] = []
    while text:
        document, end = decoder.raw_decode(text)
        documents.append(document)
        text = text[end:].lstrip()
    built, rows, fields = documents
    return built, rows, fields
