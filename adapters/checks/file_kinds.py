"""The files of an adapter, and what is said of those that lie beside them.

Only the first two names in `KNOWN` are published and reach an engine. The checks read the others (to detect a
vocabulary or chat template that differs from the base model's) and then discard them. Everything else is
ignored: it is neither opened nor copied, and named in a warning unless it is what trainers leave everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import PurePosixPath

from adapters.checks.findings import Findings, shown
from adapters.checks.trainer_output import file_remedy

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)
OPENED_INSTEAD = ("adapter_model.bin", "adapter_model.pt")
"""Pickles that engines open where adapter_model.safetensors is missing, and only there."""

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
"""Files that trainers, git and desktops leave beside an adapter, in lower case. Like the texts in `_TEXTS`,
the records in `_RECORD_SUFFIXES` and the states in `_TRAINER_STATE`, they are ignored without a word."""

_RECORD_SUFFIXES = frozenset({".md", ".log", ".jsonl", ".csv", ".yaml", ".yml", ".png", ".svg", ".html"})
"""Logs, plots and recipes: no weights, and nothing that an engine reads."""

_TRAINER_STATE = re.compile(
    r"(training_args|optimizer(_\d+)?|scaler|scheduler|rng_state(_\d+)?|random_states_\d+|recipe_state"
    r"|pytorch_model_fsdp|adapter_model)\.(bin|pt|pth|pkl)|events\.out\.tfevents\..+",
    re.ASCII,
)
"""What a training run resumes from and its event log, which lie in every checkpoint; and the adapter's own
weights in other formats. `adapter_model.pt` is torchtune's, under its own names."""

_TEXTS = ("readme", "license", "licence", "notice", "copying", "changelog", "citation")
_TEXT_SUFFIXES = frozenset({"", ".md", ".txt", ".rst", ".cff"})
_WEIGHTS = frozenset({
    ".safetensors", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx",
    ".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz",
})  # fmt: skip
_NAMED = 12


class FileKind(StrEnum):
    KNOWN = "known"
    PASSED_OVER = "passed over"
    WEIGHTS = "weights"
    """May hold weights, which engines would not see."""
    UNKNOWN = "unknown"


def kind_of(name: str) -> FileKind:
    """How a file of this name (without directories) is treated."""
    if name in KNOWN:
        return FileKind.KNOWN
    path = PurePosixPath(name.lower())
    if _TRAINER_STATE.fullmatch(path.name):
        return FileKind.PASSED_OVER
    if path.suffix in _WEIGHTS:
        return FileKind.WEIGHTS
    text = path.stem.startswith(_TEXTS) and path.suffix in _TEXT_SUFFIXES
    if text or path.name in PASSED_OVER or path.suffix in _RECORD_SUFFIXES or path.name.startswith("._"):
        return FileKind.PASSED_OVER
    return FileKind.UNKNOWN


def check_beside(names: Collection[str], findings: Findings) -> None:
    """Judge the names of the files in an adapter's folder, the adapter's own included."""
    if WEIGHTS_FILE not in names:
        for name in sorted(set(OPENED_INSTEAD) & set(names)):
            findings.add(
                "unsafe_file",
                "Pickled weights can run code when they are loaded.",
                found=shown(name),
                expected=WEIGHTS_FILE,
                remedy=file_remedy(name),
            )
    weights = sorted(name for name in names if kind_of(name) is FileKind.WEIGHTS)
    if weights:
        findings.add(
            "other_weights",
            "Weights in other files are ignored.",
            found=_listed(weights),
            expected=f"{WEIGHTS_FILE} alone",
            remedy=next((remedy for name in weights if (remedy := file_remedy(name))), ""),
        )
    if unknown := sorted(name for name in names if kind_of(name) is FileKind.UNKNOWN):
        findings.add(
            "files_ignored",
            "Files beside the adapter are ignored.",
            found=_listed(unknown),
            expected=" and ".join(FILES),
        )


def _listed(names: Iterable[str]) -> str:
    named = [shown(name)[:80] for name in names]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


def limit_of(name: str, max_bytes: int) -> int:
    """Maximum size of the known file `name` in a version of at most `max_bytes`."""
    own = KNOWN[name]
    return max_bytes if own is None else own
