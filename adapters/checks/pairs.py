"""Checks an adapter's tensors by themselves, where the base model's shapes are unknown: each module has both
of its matrices, of the rank that the config gives. Whether the base model has such modules, of such sizes,
shows only on an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.checks.lora_config import LoraConfig
from adapters.checks.safetensors_header import Tensor
from adapters.checks.tensors import add_half, module_of, refuse_no_tensors
from adapters.checks.trainer_output import tensor_remedy

_SAVED_BASE = re.compile(r"base_model\.model\.(?P<path>[A-Za-z0-9_.]+)\.base_layer\.weight", re.ASCII)
"""PEFT saves the base model's embeddings beside an adapter that changes them; vLLM ignores them."""
_NUMBERED = re.compile(r"[^.]+\.(0|[1-9][0-9]{0,5})\.", re.ASCII)


def vocabulary_of(config: Mapping[str, Any] | None) -> int | None:
    """Number of rows of the base model's embeddings, by a config.json of unknown architecture."""
    for part in (config, (config or {}).get("text_config")):
        if isinstance(part, dict) and type(size := part.get("vocab_size")) is int and size > 0:
            return size
    return None


def check_pairs(
    tensors: Mapping[str, Tensor], *, lora: LoraConfig, vocabulary: int | None, findings: Findings
) -> tuple[str, ...]:
    """Check the tensors, and return the paths of the modules that the adapter changes."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module = module_of(name)
        if module is not None:
            add_half(pairs, module, tensor, findings)
        elif not _SAVED_BASE.fullmatch(name):
            findings.add(
                "tensor_name_invalid",
                "A tensor's name does not follow PEFT's naming of LoRA weights.",
                found=shown(name),
                expected="base_model.model.<module>.lora_A.weight or .lora_B.weight "
                "(.lora_embedding_A or _B for embeddings)",
                remedy=tensor_remedy(name),
            )
        elif vocabulary is not None and tensor.shape[:1] != (vocabulary,):
            findings.add(
                "vocabulary_changed",
                "The adapter contains embeddings for a different vocabulary than the base model's.",
                found=f"{shown(name)} of shape {list(tensor.shape)}",
                expected=f"{vocabulary} rows, the base model's vocab_size",
            )
    refuse_no_tensors(pairs, tensors, findings)
    for path, halves in pairs.items():
        _check_pair(path, halves, lora, findings)
    return tuple(pairs)


def _check_pair(path: str, halves: Mapping[str, Tensor], lora: LoraConfig, findings: Findings) -> None:
    if len(halves) == 1:
        (present,) = halves
        findings.add(
            "tensor_unpaired",
            f"Module {shown(path)} has only one of its two matrices.",
            found=f"lora_{present} alone",
            expected=f"lora_{'B' if present == 'A' else 'A'} too",
        )
    numbered = _NUMBERED.search(path)
    if not lora.targets_module(path, int(numbered[1]) if numbered else None):
        findings.add(
            "module_not_targeted",
            f"Module {shown(path)} has weights, but the config does not target it.",
            found=shown(path),
            expected="only modules selected by target_modules, exclude_modules and layers_to_transform",
        )
    rank = lora.rank_of(path)
    if lora.of_parameter(path) and "A" in halves and sum(halves["A"].shape[:1]) % rank == 0:
        rank = sum(halves["A"].shape[:1])  # of all experts of a layer; how many there are is unknown
    for half, tensor in halves.items():
        axis, sides = (0, f"[{rank}, …]") if half == "A" else (1, f"[…, {rank}]")
        if len(tensor.shape) != 2 or tensor.shape[axis] != rank:
            findings.add(
                "shape_mismatch",
                f"The shape of {shown(f'{path}.lora_{half}')} does not match the rank.",
                found=str(list(tensor.shape)),
                expected=sides,
            )
