"""Whether an adapter was trained on this base model, as far as names say: engines never compare them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.model import BaseModel

_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[^/]+)$")
"""The end of a model's path in a hub's cache."""

_VAGUE = re.compile(r"(model|base|base[-_]model|checkpoint.*|final|merged|output|outputs|latest|main|hf)")
"""Directory names that say nothing about which model lies there."""


def check_base_name(config: Mapping[str, Any], base: BaseModel, findings: Findings) -> None:
    """Engines never compare `base_model_name_or_path` with what they serve; so this does."""
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip():
        findings.add(
            "base_unnamed",
            "Nothing says which base model the adapter was trained on; assume_base takes your word for it.",
            found=f"base_model_name_or_path {shown(named)}",
            expected=f"{base.name}, or registration with assume_base",
        )
        return
    ours = {form for name in (base.name, *base.aliases) for form in _forms(name)}
    if not ours & _forms(named):
        findings.add(
            "base_mismatch",
            f"The adapter was trained on another base model than {base.name}; "
            "assume_base overrides this when it is the same model under another name.",
            found=shown(named),
            expected=" or ".join((base.name, *base.aliases)),
        )
    _check_revision(config, base, findings)


def _check_revision(config: Mapping[str, Any], base: BaseModel, findings: Findings) -> None:
    """A path in a hub's cache names the commit that engines load; another way to know it there is not."""
    revision = config.get("revision")
    if not isinstance(revision, str) or revision in ("", "main"):
        return
    cached = (_SNAPSHOT.search(name) for name in (base.name, *base.aliases))
    commits = {match["commit"] for match in cached if match}
    if not any(commit.startswith(revision) for commit in commits):
        findings.add(
            "base_revision_unsure",
            "The adapter was trained on one revision of its base model; engines may serve another.",
            found=f"revision {shown(revision)}",
            expected=" or ".join(sorted(commits)) or f"to know which revision of {base.name} engines serve",
        )


def _forms(name: str) -> set[str]:
    """One model's name in full and by its last part; a path in a hub's cache becomes the hub's name."""
    text = name.strip().replace("\\", "/").rstrip("/").casefold()
    if cached := _SNAPSHOT.search(text):
        text = f"{cached['owner']}/{cached['name']}"
    last = text.rpartition("/")[2]
    return {text} if _VAGUE.fullmatch(last) else {text, last}
