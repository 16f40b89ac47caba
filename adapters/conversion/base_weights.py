"""A base model's weights on this machine: one safetensors file, or shards with their index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.checks.base_models import read_base_config
from adapters.checks.findings import shown
from adapters.checks.safetensors_header import HeaderError
from adapters.conversion.refusals import Refusals
from adapters.conversion.weight_files import StoredTensor, stored_tensors
from adapters.errors import NotFoundError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_PREFIXES = (
    ("model.language_model.", "language_model.model."),
    ("language_model.model.", "model.language_model."),
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("model.", ""),
    ("transformer.", ""),
    ("", "model."),
)
"""Prefix in an adapter → in checkpoints that name the same module in another way."""


_QUANTIZER_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Where ModelOpt, AutoGPTQ and AWQ say what older ones of them do not write to config.json."""

_PACKED = re.compile(r"\.(qweight|weight_packed|weight_scale|weight_scale_inv|weight\.absmax)$")
"""What stands beside or instead of a quantized layer's `weight`."""


@dataclass(frozen=True, slots=True)
class BaseWeights:
    directory: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def tied(self) -> bool:
        """Whether lm_head uses the input embeddings."""
        text = self.config.get("text_config")
        own = self.config.get("tie_word_embeddings")
        return bool(text.get("tie_word_embeddings") if own is None and isinstance(text, dict) else own)

    @property
    def embeddings(self) -> str:
        """Path of the input embeddings; empty if unknown."""
        names = [name for name in self.tensors if name.endswith(("embed_tokens.weight", "wte.weight"))]
        return names[0].removesuffix(".weight") if len(names) == 1 else ""

    def embeds(self, path: str) -> bool:
        """Whether it is the path of the input embeddings, also as the language model alone has it."""
        return bool(self.embeddings) and path.rpartition(".")[2] == self.embeddings.rpartition(".")[2]

    def find(self, name: str) -> StoredTensor | None:
        """The parameter of this name in the model, `lm_head.weight`; tied embeddings stand for it."""
        if name in self.tensors:
            return self.tensors[name]
        for prefix, other in _PREFIXES:
            if name.startswith(prefix) and (other + name.removeprefix(prefix)) in self.tensors:
                return self.tensors[other + name.removeprefix(prefix)]
        if name == "lm_head.weight" and self.tied:
            return self.tensors.get(f"{self.embeddings}.weight")
        return None


def read_base_weights(directory: Path) -> BaseWeights:
    """Raises RejectedError, OSError. Only headers are read."""
    refusals = Refusals(directory)
    try:
        config = read_base_config(str(directory.resolve()))
    except NotFoundError as error:
        config = None
        refusals.add(
            "base_config_invalid",
            str(error),
            found=shown(str(directory)),
            expected="a model's directory",
            remedy="Name the base model's directory with --base.",
        )
        refusals.raise_if_any()
    if config is None:
        refusals.add(
            "base_config_missing",
            "The base model's directory has no config.json.",
            found=shown(str(directory)),
            expected="a directory with config.json and safetensors files",
            remedy="Name the base model's directory with --base; a repository must be downloaded first.",
        )
        refusals.raise_if_any()
    assert config is not None
    if quantization := _quantized(directory, config):
        _refuse_quantized(quantization, refusals)
    tensors: dict[str, StoredTensor] = {}
    try:
        for path in _files(directory, refusals):
            tensors |= stored_tensors(path)
    except HeaderError as error:
        refusals.add(
            "header_invalid",
            "A weight file of the base model is not a valid safetensors file.",
            found=shown(str(error)),
            expected="complete files",
            remedy="Download the base model again.",
        )
    if packed := next((name for name in tensors if _PACKED.search(name)), ""):
        _refuse_quantized(shown(packed), refusals)
    refusals.raise_if_any()
    return BaseWeights(directory, config, tensors)


def _refuse_quantized(evidence: str, refusals: Refusals) -> None:
    refusals.add(
        "base_quantized",
        "The base model is quantized: its files hold packed numbers, not the weights that the adapter was "
        "computed with.",
        found=evidence,
        expected="the model in bfloat16, float16 or float32",
        remedy="Give the full-precision model that was quantized as --base; the result serves on both.",
    )
    refusals.raise_if_any()


def _quantized(directory: Path, config: Mapping[str, Any]) -> str:
    """Where and how the model says that it is quantized; empty if it does not."""
    text = config.get("text_config")
    for place, part in (("", config), ("text_config.", text if isinstance(text, dict) else {})):
        for key in ("quantization_config", "compression_config"):
            if quantization := part.get(key):
                method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
                return f"{place}{key}: {shown(method)}"
    return next((name for name in _QUANTIZER_FILES if (directory / name).is_file()), "")


def _files(directory: Path, refusals: Refusals) -> list[Path]:
    """The weight files, of which all must be there."""
    names = [SINGLE]
    if (directory / INDEX).is_file():
        try:
            index = json.loads((directory / INDEX).read_bytes())["weight_map"]
            names = sorted({str(name) for name in index.values()})
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            refusals.add(
                "base_index_invalid",
                f"{INDEX} is not an index of weight files.",
                found=shown(str(directory)),
                expected="a JSON object with weight_map",
                remedy="Download the base model again.",
            )
            return []
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            refusals.add(
                "base_weights_missing",
                "A weight file of the base model is missing.",
                found=shown(name),
                expected=f"{SINGLE}, or {INDEX} and its files, in {directory}",
                remedy="Download the base model in safetensors format; pickled files are not read.",
            )
    refusals.raise_if_any()
    return [directory / name for name in names]
