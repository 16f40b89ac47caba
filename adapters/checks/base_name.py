"""Checks by name whether an adapter was trained on this base model. Engines never compare names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.model import BaseModel

_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[^/]+)$")
"""The end of a model's path in the Hub's cache."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)

_WORDS = re.compile(r"[-_.+ ]+")
_TELLS_NOTHING = frozenset({
    "model", "models", "llm", "llms", "base", "instruct", "chat", "it", "text", "default", "main", "latest",
    "hf", "transformers", "pytorch", "safetensors", "huggingface", "weights", "snapshot", "snapshots",
    "checkpoint", "checkpoints", "ckpt", "step", "epoch", "final", "best", "last", "merged", "lora", "qlora",
    "adapter", "sft", "dpo", "out", "output", "outputs", "result", "results", "run", "runs", "train",
    "training", "trained", "finetune", "finetuned", "ft", "export", "local", "cache", "data", "tmp",
    "download", "downloads", "version", "release", "new", "original", "copy",
})  # fmt: skip
"""Words that go with a model's name, or stand for it, and say nothing alone."""
_FIGURE = re.compile(r"v?\d*|r?\d+(x\d+)?[bmkt]?|a\d+b|[0-9a-f]{7,64}", re.ASCII)
"""A version, a size (`8b`, `8x7b`, `a3b`), a commit."""

_SUFFIX = re.compile(r"(.+)[-_.]([^-_.]+)")
_MAX_SUFFIXES = 5
_PRECISIONS = frozenset({
    "bnb", "awq", "gptq", "fp8", "nvfp4", "nvfp4a16", "mxfp4", "mxfp8", "bf16", "fp16", "int4", "int8",
    "4bit", "8bit", "w4a8", "w4a16", "w8a16", "w8a8", "autoround", "hqq",
})  # fmt: skip
_OF_PRECISIONS = frozenset({"unsloth", "quantized", "dynamic", "block", "marlin"})
"""Words that go with the former, and say nothing alone."""

_NO_BITSANDBYTES = (
    "Compare its answers with those of training. vLLM 0.32 serves no bitsandbytes models; where memory is "
    "short, serve an AWQ, GPTQ or FP8 copy of the base model."
)


def check_base_name(config: Mapping[str, Any], base: BaseModel, findings: Findings) -> None:
    """Compare `base_model_name_or_path` with the base model's names; engines never do."""
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        findings.add(
            "base_unnamed",
            "The adapter does not name its base model; assume_base skips this check.",
            found=f"base_model_name_or_path {shown(named)}",
            expected=f"{base.name}, or registration with assume_base",
        )
        return
    names = (base.name, *base.aliases)
    if not _forms(named) & {form for name in names for form in _forms(name)}:
        unquantized = _unquantized(named)
        if unquantized and unquantized in {_unquantized(name) for name in names}:
            findings.add(
                "base_quantized",
                f"By its name, {shown(named)} is {base.name} at another precision.",
                found=shown(named),
                expected=base.name,
                remedy=_NO_BITSANDBYTES if "bnb" in named.casefold() else "",
            )
        else:
            _refuse_other(named, base, findings)
    _check_revision(config, base, findings)


def _refuse_other(named: str, base: BaseModel, findings: Findings) -> None:
    if not _last(named) and not _HUB_NAME.fullmatch(named.strip()):
        findings.add(
            "base_unsure",
            "The adapter's name for its base model does not say which model it is.",
            found=shown(named),
            expected=" or ".join((base.name, *base.public_aliases)),
        )
        return
    quantized = _unquantized(named) != _last(named)
    findings.add(
        "base_mismatch",
        f"The adapter was not trained on {base.name}; "
        "use assume_base if it is the same model under another name.",
        found=shown(named) + (", by its name a quantized model" if quantized else ""),
        expected=" or ".join((base.name, *base.public_aliases)),
    )


def _check_revision(config: Mapping[str, Any], base: BaseModel, findings: Findings) -> None:
    """Only a path in the Hub's cache names the commit that engines load."""
    revision = config.get("revision")
    if not isinstance(revision, str) or revision in ("", "main"):
        return
    cached = (_SNAPSHOT.search(name) for name in (base.name, *base.aliases))
    commits = {match["commit"] for match in cached if match}
    if not any(commit.startswith(revision) for commit in commits):
        findings.add(
            "base_revision_unsure",
            "Engines may serve a different revision of the base model than the adapter was trained on.",
            found=f"revision {shown(revision)}",
            expected=" or ".join(sorted(commits)) or f"a known revision of {base.name} on engines",
        )


def _forms(name: str) -> set[str]:
    """What identifies a model: its full name, and the end of it that begins with a telling component:
    `llama-3/8b-instruct/1`."""
    text = _hub_name(name)
    parts = text.split("/")
    telling = [number for number, part in enumerate(parts) if _identifies(part)]
    return {text, "/".join(parts[telling[-1] :])} if telling else {text}


def _last(name: str) -> str:
    """The last component of a model's name; empty if it does not identify a model."""
    last = _hub_name(name).rpartition("/")[2]
    return last if _identifies(last) else ""


def _identifies(component: str) -> bool:
    """Whether it has a word that only few models have in their names: `llama`."""
    return any(
        word not in _TELLS_NOTHING | _PRECISIONS | _OF_PRECISIONS and not _FIGURE.fullmatch(word)
        for word in _WORDS.split(component)
    )


def _unquantized(name: str) -> str:
    """The last component of a model's name without the words for its precision: `llama-3-8b` for
    `unsloth/llama-3-8b-bnb-4bit`. Empty if what is left is vague."""
    last = _last(name)
    rest, precision = last, False
    for _ in range(_MAX_SUFFIXES):
        split = _SUFFIX.fullmatch(rest)
        if not split or split[2] not in _PRECISIONS | _OF_PRECISIONS:
            break
        rest = split[1]
        precision |= split[2] in _PRECISIONS
    if not precision:
        return last
    return rest if _identifies(rest) else ""


def _hub_name(name: str) -> str:
    """In lower case; a path in the Hub's cache becomes the Hub's name, and one in ModelScope's, which writes
    `___` for a dot, gets its dots back."""
    text = name.strip().replace("\\", "/").rstrip("/").casefold().replace("___", ".")
    cached = _SNAPSHOT.search(text)
    return f"{cached['owner']}/{cached['name']}" if cached else text
