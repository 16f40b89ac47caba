"""Checks adapter_config.json: accepts what PEFT writes, except what vLLM refuses or ignores.

vLLM honours `rank_pattern`, `alpha_pattern` and `use_rslora` as PEFT does. It refuses DoRA, biases, whole
modules and initializations that change the base weights. It ignores unknown fields, so those that change the
meaning of the weights are refused here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from adapters.checks.finding_codes import CONVERT
from adapters.checks.findings import Findings, shown
from adapters.checks.lora_config import LoraConfig
from adapters.checks.safetensors_header import no_constants, unique_pairs
from adapters.checks.suffixes import Suffix, SuffixIndex
from adapters.checks.wildcards import wildcard

T = TypeVar("T")

MAX_CONFIG_BYTES = 1024 * 1024
_MAX_ENTRIES = 1024
"""Limit for `target_modules` and for each pattern; a large model has about 500 modules."""

_REFUSED_WHEN_SET = {
    "use_dora": CONVERT,
    "lora_bias": "Train it without biases.",
    "modules_to_save": CONVERT,
    "trainable_token_indices": CONVERT,
    "layer_replication": "Serve the model with replicated layers as a base model, and train on that.",
    "alora_invocation_tokens": "Train it without invocation tokens; engines would apply it to every token.",
    "enable_lora": "Train it with PEFT 0.3 or later, which names each matrix of a fused layer.",
    "use_qalora": "", "use_bdlora": "", "arrow_config": "", "kasa_config": "", "monteclora_config": "",
}  # fmt: skip
"""PEFT fields that must be null, false or empty, with the remedy; an empty remedy means the table's."""

_OTHER_TASKS = {
    "SEQ_CLS": "Florin neither loads a head for texts with an adapter, nor offers vLLM's route, /classify.",
    "TOKEN_CLS": "Its head for tokens can be served by vLLM 0.33 and later, but only under /pooling, which "
    "Florin does not offer.",
    "QUESTION_ANS": "vLLM has no model that marks an answer in a text.",
}
"""Values of `task_type` whose models have a head of their own, and why Florin does not serve them.
SEQ_2_SEQ_LM is not one of them: some write it who train a text model, and engines never look at it."""

_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Accepted values of `init_lora_weights`: they initialize only the adapter; others change the base
weights."""

_KNOWN_SWITCHES = frozenset({"use_rslora", *_REFUSED_WHEN_SET})
"""Fields named `use_…` that Florin knows. In PEFT they change what the weights mean, and engines ignore those
that they do not know."""

_RESAVE = (
    "Save it with PEFT's `save_pretrained(…, path_initial_model_for_weight_conversion=…)`, or run "
    "`florin adapter convert DIR --base BASE_DIR --initial INITIAL_DIR --out OUT` with the adapter as it was "
    "before training."
)

_PATTERN_KEY = re.compile(r"(?:\^|\.\*)?(?:[A-Za-z0-9_]|\\?\.|(?:\\d|\[0-9\])\+){1,300}\$?", re.ASCII)
_CHOICE = re.compile(r"([^()|]{0,2000})\((?:\?:)?([^()]*)\)([^()|]{0,2000})")
"""PEFT and vLLM treat pattern keys as regular expressions, and an untrusted one can hang a process. Accepted
are module names with `\\d+`, choices (`a|b`, `x.(a|b).y`), which are written out, and a few names with `.*`:
`SuffixIndex` matches them in a time that their length bounds."""
_MAX_WILDCARDS = 64


def read_config(path: Path, findings: Findings) -> dict[str, Any] | None:
    """The JSON object in `path`, or None with a finding. Raises OSError."""
    with path.open("rb") as file:
        raw = file.read(MAX_CONFIG_BYTES + 1)
    if len(raw) > MAX_CONFIG_BYTES:
        findings.add(
            "too_large",
            "adapter_config.json is too large.",
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
    """The parts that later checks need, or None if the rank or the targets are unusable."""
    if config.get("peft_type") != "LORA":
        findings.add(
            "not_lora",
            "Only LoRA adapters can be served.",
            found=f"peft_type {shown(config.get('peft_type'))}",
            expected="peft_type 'LORA'",
        )
    _check_features(config, findings)
    alpha, alpha_pattern = _alpha(config, findings)
    rank_pattern = _rank_pattern(config, findings)
    rank = _rank(config, findings)
    _check_ranks([rank or 0, *rank_pattern.values()], max_rank, fleet_ranks, findings)
    targets_ok, targets = _targets(config, findings)
    if rank is None or not targets_ok or "pattern_invalid" in findings:
        return None
    return LoraConfig(
        rank=rank,
        rank_patterns=_index(rank_pattern),
        targets=targets,
        all_linear=config.get("target_modules") == "all-linear",
        layers=_layers(config),
        excluded=_excluded(config.get("exclude_modules")),
        alpha=alpha,
        alpha_patterns=_index(alpha_pattern),
        rslora=config.get("use_rslora") is True,
        parameters=SuffixIndex.of_names(
            name.rpartition(".")[0] for name in config.get("target_parameters") or ()
        ),
    )


def _index(pattern: Mapping[str, T]) -> SuffixIndex[T]:
    """PEFT's rule: a key matches a module whose path ends with it, at a dot; the first match wins."""
    return SuffixIndex(
        (wildcard(name) or Suffix.of_pattern(name), value)
        for key, value in pattern.items()
        for name in _written_out(key)
    )


def _check_features(config: Mapping[str, Any], findings: Findings) -> None:
    refused = [(key, "null or false", remedy) for key, remedy in _REFUSED_WHEN_SET.items() if config.get(key)]
    refused += [
        (key, "null or false: Florin does not know this feature, and engines ignore it", "")
        for key, value in config.items()
        if key.startswith("use_") and key not in _KNOWN_SWITCHES and value
    ]
    if config.get("bias", "none") != "none":
        refused.append(("bias", "'none'", _REFUSED_WHEN_SET["lora_bias"]))
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        refused.append(("init_lora_weights", "true", _RESAVE))
    refused += [
        (key, "true or false", "")
        for key in ("use_rslora", "fan_in_fan_out")
        if not isinstance(config.get(key), bool | None)
    ]
    if config.get("ensure_weight_tying") and not _spares_embeddings(config.get("target_modules")):
        refused.append(
            ("ensure_weight_tying", "false: engines adapt embed_tokens and lm_head separately", "")
        )
    if (reason := _OTHER_TASKS.get(str(config.get("task_type")))) is not None:
        refused.append(
            ("task_type", "'CAUSAL_LM'", f"{reason} Train it for text generation: it can write the labels.")
        )
    for key, expected, remedy in refused:
        findings.add(
            "unsupported_feature",
            f"Florin cannot serve an adapter with this value of `{key}`.",
            found=f"{key} = {shown(config[key])}",
            expected=expected,
            remedy=remedy,
        )


def _spares_embeddings(targets: Any) -> bool:
    names = [str(target).rpartition(".")[2] for target in targets] if isinstance(targets, list) else []
    return bool(names) and not {"embed_tokens", "lm_head"} & set(names)


def _alpha(config: Mapping[str, Any], findings: Findings) -> tuple[float | None, dict[str, float]]:
    """`lora_alpha` (None if unusable) and `alpha_pattern`."""
    alpha = config.get("lora_alpha")
    if not _is_positive(alpha):
        findings.add(
            "alpha_invalid",
            "`lora_alpha`, the adapter's scaling, is missing or invalid.",
            found=shown(alpha),
            expected="a finite number above 0",
        )
        alpha = None
    pattern = config.get("alpha_pattern") or {}
    if pattern and not _is_pattern(pattern, _is_positive):
        _refuse_pattern("alpha_pattern", pattern, "finite numbers above 0", findings)
        pattern = {}
    return alpha, dict(pattern)


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
        f"`{key}` is invalid.",
        found=shown(pattern),
        expected="a mapping of module names (letters, digits, '_', '.', `\\d+`, a few `.*`, one `(a|b)`) to "
        f"{values}",
    )


def _rank(config: Mapping[str, Any], findings: Findings) -> int | None:
    rank = config.get("r")
    if _is_rank(rank):
        return int(rank)  # type: ignore[arg-type]  # _is_rank has checked the type
    findings.add(
        "rank_invalid",
        "`r`, the adapter's rank, is missing or invalid.",
        found=shown(rank),
        expected="a positive integer",
    )
    return None


def _check_ranks(ranks: Sequence[int], max_rank: int, fleet_ranks: Sequence[int], findings: Findings) -> None:
    if max(ranks) > max_rank:
        of_fleet = ", ".join(str(rank) for rank in sorted(set(fleet_ranks)))
        findings.add(
            "rank_too_high",
            "No engine in the fleet accepts an adapter of this rank.",
            found=f"rank {max(ranks)}",
            expected=f"at most {max_rank}"
            + (f" (the fleet's engines accept: {of_fleet})" if of_fleet else ""),
        )


def _targets(config: Mapping[str, Any], findings: Findings) -> tuple[bool, SuffixIndex[str] | None]:
    targets, parameters = config.get("target_modules"), config.get("target_parameters")
    if parameters and not _are_names(parameters):
        findings.add(
            "target_modules_invalid",
            "`target_parameters`, the weights that the adapter changes, is invalid.",
            found=shown(parameters),
            expected="a list of names of parameters, or null",
        )
        return False, None
    if isinstance(targets, str) and targets:
        return True, None
    if _are_names(targets) or (parameters and not targets):
        return True, SuffixIndex.of_names(targets or ())
    findings.add(
        "target_modules_invalid",
        "`target_modules`, the modules that the adapter changes, is missing or invalid.",
        found=shown(targets),
        expected="a list of module names, or a regular expression",
    )
    return False, None


def _excluded(excluded: Any) -> SuffixIndex[str] | None:
    if _are_names(excluded):
        return SuffixIndex.of_names(excluded)
    return None if excluded else SuffixIndex()


def _layers(config: Mapping[str, Any]) -> frozenset[int] | None:
    layers = config.get("layers_to_transform")
    given: list[Any] = layers if isinstance(layers, list) else [layers]
    # With `layers_pattern`, "layer" may mean something else.
    usable = given and all(type(layer) is int for layer in given) and not config.get("layers_pattern")
    return frozenset(given) if usable else None


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MAX_ENTRIES
        and all(isinstance(name, str) and name for name in value)
    )


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**16


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e30 and math.isfinite(value)


def _is_pattern(pattern: Any, accepts: Any) -> bool:
    if not isinstance(pattern, dict) or not all(accepts(value) for value in pattern.values()):
        return False
    every = (name for key in pattern for name in _written_out(key))
    written = list(islice(every, _MAX_ENTRIES + 1))
    others = [name for name in written if not _PATTERN_KEY.fullmatch(name)]
    return (
        len(written) <= _MAX_ENTRIES
        and len(others) <= _MAX_WILDCARDS
        and all(wildcard(name) for name in others)
    )


def _written_out(key: str) -> Iterator[str]:
    """`layers.(0|1).q_proj` → `layers.0.q_proj`, `layers.1.q_proj`."""
    if choice := _CHOICE.fullmatch(key):
        return (f"{choice[1]}{part}{choice[3]}" for part in choice[2].split("|"))
    return iter(key.split("|"))
