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
    ours = {form for name in (base.name, *base.aliases) for form in _forms(name)}
    if not ours & _forms(named):
        findings.add(
            "base_mismatch",
            f"The adapter was not trained on {base.name}; "
            "use assume_base if it is the same model under another name.",
            found=shown(named),
            expected=" or ".join((base.name, *base.public_aliases)),
        )
    _check_revision(config, base, findings)


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
    """The full name of a model and its last component; a path in the Hub's cache becomes the Hub's name."""
    text = name.strip().replace("\\", "/").rstrip("/").casefold()
    if cached := _SNAPSHOT.search(text):
        text = f"{cached['owner']}/{cached['name']}"
    last = text.rpartition("/")[2]
    return {text} if _VAGUE.fullmatch(last) else {text, last}
