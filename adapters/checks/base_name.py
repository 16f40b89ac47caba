"""Checks by name whether an adapter was trained on this base model. Engines never compare names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.model import BaseModel

_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[^/]+)$")
"""The end of a model's path in the Hub's cache."""

_VAGUE = re.compile(r"(model|base|base[-_]model|checkpoint.*|final|merged|output|outputs|latest|main|hf)")
"""Directory names that do not identify a model."""

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
        whole = _unquantized(named)
        if whole and whole in {_unquantized(name) for name in names}:
            findings.add(
                "base_quantized",
                f"By its name, {shown(named)} is {base.name} at another precision.",
                found=shown(named),
                expected=base.name,
                remedy=_NO_BITSANDBYTES if "bnb" in named.casefold() else "",
            )
        else:
            _refuse(named, base, findings)
    _check_revision(config, base, findings)


def _refuse(named: str, base: BaseModel, findings: Findings) -> None:
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
    """The full name of a model and its last component, unless that is vague."""
    text = _hub_name(name)
    last = text.rpartition("/")[2]
    return {text} if _VAGUE.fullmatch(last) else {text, last}


def _last(name: str) -> str:
    """The last component of a model's name; empty if it is vague."""
    last = _hub_name(name).rpartition("/")[2]
    return "" if _VAGUE.fullmatch(last) else last


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
    return "" if _VAGUE.fullmatch(rest) else rest


def _hub_name(name: str) -> str:
    """In lower case; a path in the Hub's cache becomes the Hub's name, and one in ModelScope's, which writes
    `___` for a dot, gets its dots back."""
    text = name.strip().replace("\\", "/").rstrip("/").casefold().replace("___", ".")
    cached = _SNAPSHOT.search(text)
    return f"{cached['owner']}/{cached['name']}" if cached else text
