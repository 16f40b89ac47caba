"""Adapters as trainers write them: what they wrote is recorded, and rebuilt here byte by byte.

`trained.json` holds the names and shapes that each library wrote for a Llama of two layers (LLAMA of
tests/support/lora.py), with its version in `made_by`. Where a trainer does not install without a GPU, only its
own files are listed here, from its source; PEFT writes its adapters, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.lora import write_adapter

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[1] / "unit/adapters/checks/trained.json").read_text()
)

_TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "chat_template.jinja")
_CHECKPOINT = (
    "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin",
)  # fmt: skip

LEFT_BESIDE: dict[str, tuple[str, ...]] = {
    "TRL": (*_TOKENIZER, "training_args.bin", "README.md", "checkpoint-2/", "runs/"),
    "TRL, a checkpoint": (*_TOKENIZER, *_CHECKPOINT, "README.md"),
    "TRL, a checkpoint under FSDP": (
        *_TOKENIZER, "optimizer.bin", "pytorch_model_fsdp.bin", "rng_state_0.pth", "rng_state_1.pth",
        "scheduler.pt", "trainer_state.json", "training_args.bin",
    ),
    "TRL, a checkpoint under DeepSpeed": (
        *_TOKENIZER, "global_step300/", "latest", "zero_to_fp32.py", "rng_state_0.pth", "scheduler.pt",
        "trainer_state.json", "training_args.bin",
    ),
    # unsloth 2026.10.9: model.save_pretrained and tokenizer.save_pretrained
    "Unsloth": (*_TOKENIZER, "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
    # axolotl 0.19.0: axolotl/train.py, axolotl/cli/config.py
    "Axolotl": (
        *_TOKENIZER, "config.json", "debug.log", "README.md", "trainer_state.json", "training_args.bin",
        "checkpoint-300/", "runs/", "merged/",
    ),
    # llamafactory 0.9.5: train/sft/workflow.py, extras/ploting.py, extras/constants.py
    "LLaMA-Factory": (
        *_TOKENIZER, "added_tokens.json", "all_results.json", "train_results.json", "eval_results.json",
        "trainer_log.jsonl", "trainer_state.json", "training_args.bin", "training_args.yaml",
        "training_loss.png", "training_eval_loss.png", "llamaboard_config.yaml", "running_log.txt",
        "checkpoint-300/", "README.md",
    ),
    # torchtune 0.6.1: training/checkpointing/_checkpointer.py with save_adapter_weights_only
    "torchtune": (
        *_TOKENIZER, "adapter_model.pt", "config.json", "generation_config.json", "original_repo_id.json",
        "LICENSE", "USE_POLICY.md", "README.md", "original/",
    ),
    # ms_swift 4.6.0
    "ms-swift": ("args.json", "additional_config.json", "logging.jsonl", *_CHECKPOINT, "README.md", "images/"),
}  # fmt: skip
"""Trainer → what lies beside the two files; directories end with a slash."""


def write_recorded(directory: Path, name: str, **config: Any) -> Path:
    """The directory that was recorded under this name. `config` overrides fields of its adapter_config.json."""
    entry = RECORDED[name]
    tensors = (
        entry["tensors"] if isinstance(entry["tensors"], dict) else RECORDED[entry["tensors"]]["tensors"]
    )
    like = RECORDED[entry["like"]]["config"] if "like" in entry else {}
    write_adapter(
        directory,
        config={**like, **entry["config"], **config},
        tensors={tensor: ("F32", tuple(shape)) for tensor, shape in tensors.items()},
    )
    put_beside(directory, entry["beside"])
    return directory


def put_beside(directory: Path, names: tuple[str, ...] | list[str]) -> None:
    for name in names:
        if name.endswith("/"):
            (directory / name).mkdir()
            (directory / name / "adapter_model.bin").write_bytes(b"x")
        else:
            (directory / name).write_bytes(b"{}" if name.endswith(".json") else b"x")
