"""Checks an adapter's adapter_config.json: what PEFT may write there, less what vLLM refuses or ignores.

vLLM honours `rank_pattern` and `alpha_pattern` as PEFT does, and `use_rslora`. It refuses DoRA, biases,
whole modules and initialisations that change the base weights; and it passes over fields it does not know,
so those which change what the weights mean are refused here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.findings import Findings, shown
from adapters.model import BaseModel
from adapters.safetensors_header import no_constants, unique_pairs

MAX_CONFIG_BYTES = 1024 * 1024
_MAX_ENTRIES = 1024
"""Of `target_modules` and of each pattern: a large model has some 500 modules."""

_REFUSED_WHEN_SET = (
    "use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens",
    "trainable_token_indices", "target_parameters", "use_qalora", "use_bdlora", "arrow_config",
    "kasa_config", "monteclora_config",
)  # fmt: skip
"""PEFT fields that must be null, false or empty."""

_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Texts that `init_lora_weights` may be: these set up the adapter only; others change the base's weights."""

_PATTERN_KEY = re.compile(r"\^?(?:[A-Za-z0-9_]|\\?\.){1,300}", re.ASCII)
"""Keys of patterns are regular expressions to PEFT and vLLM; plain module names are all that is allowed, for
a stranger's expression can keep a process busy for ever."""

_VAGUE = re.compile(r"(model|base|base[-_]model|checkpoint.*|final|merged|output|outputs|latest|main|hf)")
"""Directory names that say nothing about which model lies there."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What of adapter_config.json the check of the tensors needs."""

    rank: int
    rank_patterns: tuple[tuple[re.Pattern[str], int], ...]
    targets: tuple[str, ...] | None
    """None: an expression over module names, which is not evaluated here."""
    excludes: bool

    def rank_of(self, module: str) -> int:
        """Rank of the module at this path: of the first pattern that fits, as in PEFT."""
        for pattern, rank in self.rank_patterns:
            if pattern.match(module):
                return rank
        return self.rank

    @property
    def highest_rank(self) -> int:
        """What an engine's `--max-lora-rank` must reach: it counts patterns that match nothing, too."""
        return max(self.rank, *(rank for _, rank in self.rank_patterns), 0)

    def targeted(self, module: str) -> bool:
        return self.targets is None or any(
            module == target or module.endswith(f".{target}") for target in self.targets
        )


def read_config(path: Path, findings: Findings) -> dict[str, Any] | None:
    """The JSON object in `path`, or None with a finding. Raises OSError."""
    with path.open("rb") as file:
        raw = file.read(MAX_CONFIG_BYTES + 1)
    if len(raw) > MAX_CONFIG_BYTES:
        findings.add(
            "too_large",
            "adapter_config.json is larger than any real one.",
            found=f"more than {MAX_CONFIG_BYTES} bytes",
            expected=f"at most {MAX_CONFIG_BYTES} bytes",
        )
        return None
    try:
        config = json.loads(raw.decode(), object_pairs_hook=unique_pairs, parse_constant=no_constants)
    except (ValueError, RecursionError) as error:
        findings.add(
            "config_invalid",
            "adapter_config.json is not valid JSON.",
            found=shown(str(error)),
            expected="one JSON object in UTF-8",
        )
        return None
    if not isinstance(config, dict):
        findings.add(
            "config_invalid",
            "adapter_config.json is not a JSON object.",
            found=type(config).__name__,
            expected="one JSON object",
        )
        return None
    return config


def check_config(
    config: Mapping[str, Any], *, max_rank: int, fleet_ranks: Sequence[int], findings: Findings
) -> LoraConfig | None:
    """The parts that matter further on, or None when rank or targets are unusable."""
    if config.get("peft_type") != "LORA":
        findings.add(
            "not_lora",
            "Only LoRA adapters can be served.",
            found=f"peft_type {shown(config.get('peft_type'))}",
            expected="peft_type 'LORA'",
        )
    _check_features(config, findings)
    _check_alpha(config, findings)
    rank_pattern = _rank_pattern(config, findings)
    rank = _rank(config, findings)
    _check_ranks([rank or 0, *rank_pattern.values()], max_rank, fleet_ranks, findings)
    targets_ok, targets = _targets(config, findings)
    if rank is None or not targets_ok or "pattern_invalid" in findings:
        return None
    # PEFT's rule: a key fits a module whose path ends with it, at a dot.
    patterns = tuple((re.compile(rf"(.*\.)?({key})$"), r) for key, r in rank_pattern.items())
    return LoraConfig(rank, patterns, targets, bool(config.get("exclude_modules")))


def _check_features(config: Mapping[str, Any], findings: Findings) -> None:
    refused = [(key, "null or false") for key in _REFUSED_WHEN_SET if config.get(key)]
    if config.get("bias", "none") != "none":
        refused.append(("bias", "'none'"))
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        refused.append(("init_lora_weights", "true (convert the adapter to plain LoRA with PEFT first)"))
    refused += [
        (key, "true or false")
        for key in ("use_rslora", "fan_in_fan_out")
        if not isinstance(config.get(key), bool | None)
    ]
    for key, expected in refused:
        findings.add(
            "unsupported_feature",
            f"Engines cannot serve an adapter with `{key}` set so.",
            found=f"{key} = {shown(config[key])}",
            expected=expected,
        )


def _check_alpha(config: Mapping[str, Any], findings: Findings) -> None:
    alpha = config.get("lora_alpha")
    if not _is_positive(alpha):
        findings.add(
            "alpha_invalid",
            "`lora_alpha` scales the adapter and must be given.",
            found=shown(alpha),
            expected="a finite number above 0",
        )
    pattern = config.get("alpha_pattern")
    if pattern and not _is_pattern(pattern, _is_positive):
        _refuse_pattern("alpha_pattern", pattern, "finite numbers above 0", findings)


def _rank_pattern(config: Mapping[str, Any], findings: Findings) -> dict[str, int]:
    pattern = config.get("rank_pattern")
    if not pattern:
        return {}
    if not _is_pattern(pattern, _is_rank):
        _refuse_pattern("rank_pattern", pattern, "positive integers", findings)
        return {}
    return dict(pattern)


def _refuse_pattern(key: str, pattern: Any, values: str, findings: Findings) -> None:
    findings.add(
        "pattern_invalid",
        f"`{key}` is not usable.",
        found=shown(pattern),
        expected=f"a map from module names (letters, digits, '_', '.', no other expressions) to {values}",
    )


def _rank(config: Mapping[str, Any], findings: Findings) -> int | None:
    rank = config.get("r")
    if _is_rank(rank):
        return int(rank)  # type: ignore[arg-type]  # _is_rank has seen that it is an int
    findings.add(
        "rank_invalid", "`r` is the adapter's rank.", found=shown(rank), expected="a positive integer"
    )
    return None


def _check_ranks(ranks: Sequence[int], max_rank: int, fleet_ranks: Sequence[int], findings: Findings) -> None:
    if max(ranks) > max_rank:
        of_fleet = ", ".join(str(rank) for rank in sorted(set(fleet_ranks)))
        findings.add(
            "rank_too_high",
            "No engine of the fleet takes an adapter of this rank.",
            found=f"rank {max(ranks)}",
            expected=f"at most {max_rank}" + (f" (the fleet's engines take: {of_fleet})" if of_fleet else ""),
        )


def _targets(config: Mapping[str, Any], findings: Findings) -> tuple[bool, tuple[str, ...] | None]:
    targets = config.get("target_modules")
    if isinstance(targets, str) and targets:
        return True, None
    if isinstance(targets, list) and 0 < len(targets) <= _MAX_ENTRIES and all(_is_text(t) for t in targets):
        return True, tuple(targets)
    findings.add(
        "target_modules_invalid",
        "`target_modules` says which modules the adapter changes.",
        found=shown(targets),
        expected="a list of module names, or an expression over them",
    )
    return False, None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**16


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30 and math.isfinite(value)


def _is_pattern(pattern: Any, accepts: Any) -> bool:
    return (
        isinstance(pattern, dict)
        and len(pattern) <= _MAX_ENTRIES
        and all(_PATTERN_KEY.fullmatch(key) and accepts(value) for key, value in pattern.items())
    )


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


def _forms(name: str) -> set[str]:
    """One model's name in full and by its last part; a path in a hub's cache becomes the hub's name."""
    text = name.strip().replace("\\", "/").rstrip("/").casefold()
    cached = re.search(r"models--([^/]+?)--([^/]+)/snapshots/[^/]+$", text)
    if cached:
        text = f"{cached[1]}/{cached[2]}"
    last = text.rpartition("/")[2]
    return {text} if _VAGUE.fullmatch(last) else {text, last}
