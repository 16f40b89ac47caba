"""The files of an adapter: which are read, which are ignored, and which are refused.

Only the first two names in `KNOWN` are published and reach an engine. The checks read the others (to detect a
vocabulary or chat template that differs from the base model's) and then discard them.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath

from adapters.checks.findings import Findings, shown
from adapters.checks.trainer_output import file_remedy

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)

_MIB = 1024 * 1024

KNOWN: dict[str, int | None] = {
    CONFIG_FILE: 1 * _MIB,
    WEIGHTS_FILE: None,
    "tokenizer_config.json": 16 * _MIB,
    "special_tokens_map.json": 1 * _MIB,
    "added_tokens.json": 16 * _MIB,
    "chat_template.jinja": 1 * _MIB,
    "chat_template.json": 1 * _MIB,
    "tokenizer.json": 64 * _MIB,
}
"""Name → maximum size in bytes; None for whatever the limit of the whole version leaves."""

PASSED_OVER = frozenset(
    {
        ".gitattributes", ".gitignore", ".ds_store",
        "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "merges.txt",
        "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
        "video_preprocessor_config.json",
        "trainer_state.json", "train_results.json", "eval_results.json", "predict_results.json",
        "all_results.json", "dataset_info.json", "swanlab_public_config.json",
        "args.json", "additional_config.json", "original_repo_id.json", "model.safetensors.index.json",
        "running_log.txt", "latest", "zero_to_fp32.py",
    }
)  # fmt: skip
"""Files that trainers, git and desktops leave beside an adapter, in lower case: neither they nor the texts in
`_TEXTS`, the records in `_RECORD_SUFFIXES` and the states in `_TRAINER_STATE` are ever opened or copied."""

_RECORD_SUFFIXES = frozenset({".md", ".log", ".jsonl", ".csv", ".yaml", ".yml", ".png", ".svg", ".html"})
"""Logs, plots and recipes: no weights, and nothing that an engine reads."""

_TRAINER_STATE = re.compile(
    r"(training_args|optimizer(_\d+)?|scaler|scheduler|rng_state(_\d+)?|random_states_\d+|recipe_state"
    r"|pytorch_model_fsdp)\.(bin|pt|pth|pkl)|adapter_model\.pt|events\.out\.tfevents\..+",
    re.ASCII,
)
"""What a training run resumes from and its event log, which lie in every checkpoint. `adapter_model.pt` is
torchtune's copy of the weights under its own names."""

_TEXTS = ("readme", "license", "licence", "notice", "copying", "changelog", "citation")
_TEXT_SUFFIXES = frozenset({"", ".md", ".txt", ".rst", ".cff"})
_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz"})
_WEIGHTS = frozenset({".safetensors", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx"})


class FileKind(StrEnum):
    KNOWN = "known"
    PASSED_OVER = "passed over"
    PICKLE = "pickle"
    """Can run code when loaded."""
    WEIGHTS = "weights"
    """Weights that engines would ignore."""
    UNKNOWN = "unknown"


def kind_of(name: str) -> FileKind:
    """How a file of this name (without directories) is treated."""
    if name in KNOWN:
        return FileKind.KNOWN
    path = PurePosixPath(name.lower())
    if _TRAINER_STATE.fullmatch(path.name):
        return FileKind.PASSED_OVER
    if path.suffix in _PICKLES:
        return FileKind.PICKLE
    if path.suffix in _WEIGHTS:
        return FileKind.WEIGHTS
    text = path.stem.startswith(_TEXTS) and path.suffix in _TEXT_SUFFIXES
    if text or path.name in PASSED_OVER or path.suffix in _RECORD_SUFFIXES or path.name.startswith("._"):
        return FileKind.PASSED_OVER
    return FileKind.UNKNOWN


def refuse_stray(name: str, findings: Findings) -> None:
    """Add a finding if a file of this name must not be in an adapter."""
    match kind_of(name):
        case FileKind.PICKLE:
            findings.add(
                "unsafe_file",
                "Pickled files can run code when they are loaded.",
                found=shown(name),
                expected=f"{CONFIG_FILE} and {WEIGHTS_FILE}, and no pickled files",
                remedy=file_remedy(name),
            )
        case FileKind.WEIGHTS:
            findings.add(
                "other_weights",
                "Engines read one weight file; weights in other files would be lost.",
                found=shown(name),
                expected=f"{WEIGHTS_FILE} alone",
                remedy=file_remedy(name),
            )
        case FileKind.UNKNOWN:
            findings.add(
                "unknown_file",
                "Florin does not know this file, so it cannot tell whether the adapter needs it.",
                found=shown(name),
                expected=f"{', '.join(KNOWN)}, and texts such as README.md",
            )


def limit_of(name: str, max_bytes: int) -> int:
    """Maximum size of the known file `name` in a version of at most `max_bytes`."""
    own = KNOWN[name]
    return max_bytes if own is None else own
