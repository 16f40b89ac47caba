"""The ways in which an adapter can fail its checks: one table, and the collector that fills a refusal."""

from __future__ import annotations

from collections import Counter

from adapters.errors import Finding, RejectedError

CODES: dict[str, str] = {
    # where it comes from
    "source_unsupported": "The source is neither an absolute directory path nor a file:// URL.",
    "directory_missing": "The source directory is not there, or is no directory.",
    "file_missing": "adapter_config.json or adapter_model.safetensors is not there.",
    "not_regular": "One of the two files is a directory, a pipe or a device.",
    "symlink_escapes": "One of the two files is a link that leads out of the directory.",
    "unreadable": "The files cannot be read by Florin.",
    "unsafe_file": "The directory holds pickled files, which run code when they are loaded.",
    "other_weights": "There are weights besides adapter_model.safetensors, which engines would not serve.",
    "too_large": "The two files together exceed the size limit, or adapter_config.json exceeds its own.",
    # adapter_config.json
    "config_invalid": "adapter_config.json is not one JSON object, or repeats a key.",
    "not_lora": "`peft_type` is not LORA.",
    "rank_invalid": "`r` is no positive integer.",
    "rank_too_high": "`r`, or a rank in `rank_pattern`, exceeds what the fleet's engines take.",
    "alpha_invalid": "`lora_alpha` is no finite number above zero.",
    "pattern_invalid": "`rank_pattern` or `alpha_pattern` is not a small map from module names to numbers.",
    "target_modules_invalid": "`target_modules` is missing, empty, or neither a text nor a list of texts.",
    "unsupported_feature": "The adapter uses a PEFT feature that engines refuse, or wrongly ignore.",
    # the base model
    "base_ambiguous": "No base model was named, and there is not exactly one.",
    "base_unnamed": "`base_model_name_or_path` is missing, so nothing says what the adapter was trained on.",
    "base_mismatch": "The adapter was trained on another base model.",
    "base_config_missing": "Florin does not have the base model's config.json, so shapes cannot be checked.",
    "base_config_invalid": "The base model's config.json lacks a dimension, or has an absurd one.",
    "unknown_architecture": "Florin does not know the base model's architecture, so cannot check shapes.",
    # adapter_model.safetensors
    "header_invalid": "The safetensors header is corrupt, or does not fit the file's length.",
    "no_tensors": "The file holds no LoRA weights.",
    "tensor_name_invalid": "A tensor is not named as PEFT names LoRA weights.",
    "tensor_unpaired": "A lora_A has no lora_B, or the other way round.",
    "dtype_unsupported": "A tensor is neither float16, bfloat16 nor float32.",
    "module_not_in_base": "A tensor belongs to a module that the base lacks, or that engines cannot adapt.",
    "layer_out_of_range": "A tensor belongs to a layer that the base does not have.",
    "shape_mismatch": "A tensor's shape does not fit the base model and the rank.",
    "module_not_targeted": "A tensor belongs to a module that `target_modules` does not name.",
    "target_without_tensors": "`target_modules` names a module of the base for which there are no tensors.",
}
"""Code → what it means. Stable: people script against the codes, and the README lists them."""

_SHOWN_PER_CODE = 3
_SHOWN_CHARACTERS = 160


def shown(value: object) -> str:
    """`value` as findings quote it: its repr, cut to a readable length (it may come from a stranger)."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


class Findings:
    """Collects findings; of those of one code only the first few are kept, and the rest counted, since
    a wrong base model makes every tensor of every layer wrong in the same way."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, code: str, message: str, *, found: str, expected: str) -> None:
        if code not in CODES:
            raise KeyError(code)
        self._counts[code] += 1
        if self._counts[code] <= _SHOWN_PER_CODE:
            self._kept.append(Finding(code, message, found, expected))

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __contains__(self, code: str) -> bool:
        return code in self._counts

    def refuse_if_any(self, adapter: str) -> None:
        """Raises RejectedError with all findings, or returns when there are none."""
        if self._kept:
            raise RejectedError(adapter, self._findings())

    def _findings(self) -> tuple[Finding, ...]:
        seen: Counter[str] = Counter()
        result = []
        for finding in self._kept:
            seen[finding.code] += 1
            more = self._counts[finding.code] - _SHOWN_PER_CODE
            if seen[finding.code] == _SHOWN_PER_CODE and more > 0:
                message = f"{finding.message} (And {more} more alike.)"
                finding = Finding(finding.code, message, finding.found, finding.expected)  # noqa: PLW2901 - the same finding, with its count
            result.append(finding)
        return tuple(result)
