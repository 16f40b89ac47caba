"""Reads an adapter as PEFT writes it, with names that wrappers and trainers have changed put right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adapters.checks.adapter_folder import directory_of
from adapters.checks.file_kinds import CONFIG_FILE, WEIGHTS_FILE
from adapters.checks.findings import CODES, Findings, shown
from adapters.checks.lora_config import LoraConfig
from adapters.checks.peft_config import check_config, read_config
from adapters.checks.safetensors_header import HeaderError
from adapters.conversion.arrays import Floats
from adapters.conversion.factors import Factors
from adapters.conversion.refusals import Refusals
from adapters.conversion.weight_files import StoredTensor, stored_tensors

_WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_INFIX = r"(?:\.(?P<adapter>(?!weight$)[A-Za-z0-9_-]+))?"
"""The adapter's name in training, which PEFT removes and others leave: `lora_A.default.weight`."""
_LORA = re.compile(rf"(?P<path>.+)\.lora_(?P<half>[AB]){_INFIX}\.weight")
_EMBEDDING = re.compile(rf"(?P<path>.+)\.lora_embedding_(?P<half>[AB]){_INFIX}")
_MAGNITUDE = re.compile(rf"(?P<path>.+)\.lora_magnitude_vector{_INFIX}(?:\.weight)?")
_TOKENS = re.compile(rf"(?P<path>.+)\.token_adapter\.trainable_tokens_delta{_INFIX}")
_SAVED = re.compile(
    r"(?P<path>.+?)(?:\.modules_to_save(?:\.(?P<adapter>(?!weight$|bias$)[A-Za-z0-9_-]+))?)?\.(?P<name>weight|bias)"
)
_COPIES = re.compile(r".+\.(?:base_layer|original_module)\.(?:weight|bias)")
"""The base model's own weights, saved along; engines and PEFT ignore them."""

_CONVERTED = {
    "use_dora": False, "modules_to_save": None, "trainable_token_indices": None, "init_lora_weights": True,
    "ensure_weight_tying": False, "layers_pattern": None,
}  # fmt: skip
"""Features that conversion resolves, with the values that a plain adapter has. All others are checked as for
registration."""


@dataclass(frozen=True, slots=True)
class Module:
    a: StoredTensor
    b: StoredTensor
    scaling: float
    embedding: bool
    """`lora_embedding_A` and `_B`: the base weight is stored as (in, out)."""
    magnitude: StoredTensor | None = None

    def factors(self) -> Factors:
        return Factors(self.a.all(), self.b.all(), self.scaling)

    def magnitudes(self) -> Floats:
        assert self.magnitude is not None
        return self.magnitude.all().reshape(-1)


@dataclass(frozen=True, slots=True)
class SourceAdapter:
    directory: Path
    config: Mapping[str, Any]
    dtype: str
    """The type of its LoRA weights, or F32 if they are of several types."""
    rank: int
    """Its highest rank."""
    modules: Mapping[str, Module]
    """By path in the base model: `model.layers.0.mlp.up_proj`."""
    saved: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Whole parameters, by name: `lm_head.weight`."""
    tokens: Mapping[str, tuple[tuple[int, ...], StoredTensor]] = field(default_factory=dict)
    """By path of an embedding: the tokens whose rows are replaced, and the rows."""

    @property
    def is_plain(self) -> bool:
        return not self.saved and not self.tokens and all(m.magnitude is None for m in self.modules.values())

    @property
    def transposed(self) -> bool:
        """The linear layers' weights are stored as (in, out)."""
        return self.config.get("fan_in_fan_out") is True


def read_adapter(directory: Path) -> SourceAdapter:
    """Raises RejectedError with every reason, OSError. Only headers and the config are read."""
    refusals, directory = Refusals(directory), directory_of(directory)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (directory / name).is_file():
            refusals.add(
                "file_missing",
                f"{name} is missing.",
                found=shown(str(directory)),
                expected=f"{CONFIG_FILE} and {WEIGHTS_FILE}",
                remedy="Name the directory that the trainer wrote, and save in safetensors format.",
            )
    refusals.raise_if_any()
    findings = Findings()
    config = read_config(directory / CONFIG_FILE, findings)
    findings.refuse_if_any(str(directory))
    assert config is not None
    lora = check_config({**config, **_CONVERTED}, max_rank=2**16, fleet_ranks=(), findings=findings)
    findings.refuse_if_any(str(directory))
    assert lora is not None
    try:
        tensors = stored_tensors(directory / WEIGHTS_FILE)
    except HeaderError as error:
        refusals.add(
            error.code,
            "The weight file is not a valid safetensors file.",
            found=shown(str(error)),
            expected=error.expected,
            remedy=CODES[error.code].remedy,
        )
        refusals.raise_if_any()
        raise
    source = _sorted_out(directory, config, lora, tensors, refusals)
    refusals.raise_if_any()
    return source


def plain_name(name: str) -> str:
    """Without wrappers and prefixes: `model.layers.0.mlp.up_proj.lora_A.weight`."""
    name = _WRAPPERS.sub("", name).removeprefix("module.")
    while name.startswith("base_model.model."):
        name = _WRAPPERS.sub("", name.removeprefix("base_model.model."))
    return name


class _SortedTensors:
    """Tensors by what they are. Mutable."""

    def __init__(self) -> None:
        self.halves: dict[str, dict[str, StoredTensor]] = {}
        self.embeddings: set[str] = set()
        self.magnitudes: dict[str, StoredTensor] = {}
        self.tokens: dict[str, StoredTensor] = {}
        self.saved: dict[str, StoredTensor] = {}
        self.names: set[str] = set()
        """The adapter's names that were found as infixes."""

    def put(self, name: str, tensor: StoredTensor) -> bool:
        """False if another tensor has that name already, or it is none of an adapter's."""
        if _COPIES.fullmatch(name):
            return True
        for pattern in (_LORA, _EMBEDDING, _MAGNITUDE, _TOKENS, _SAVED):
            if (match := pattern.fullmatch(name)) is not None:
                break
        else:
            return False
        path = match["path"]
        if match["adapter"]:
            self.names.add(match["adapter"])
        if ".lora_" in path:  # lora_B.bias and the like
            return False
        if pattern in (_LORA, _EMBEDDING):
            if pattern is _EMBEDDING:
                self.embeddings.add(path)
            target, key = self.halves.setdefault(path, {}), match["half"]
        elif pattern is _SAVED:
            target, key = self.saved, f"{path}.{match['name']}"
        else:
            target, key = (self.magnitudes if pattern is _MAGNITUDE else self.tokens), path
        return target.setdefault(key, tensor) is tensor


def _sorted_out(
    directory: Path,
    config: dict[str, Any],
    lora: LoraConfig,
    tensors: dict[str, StoredTensor],
    refusals: Refusals,
) -> SourceAdapter:
    tensors_by_role = _SortedTensors()
    for name, tensor in tensors.items():
        if not tensors_by_role.put(plain_name(name), tensor):
            refusals.add(
                "tensor_name_invalid",
                "A tensor is not one of an adapter's, or has the name of another.",
                found=shown(name),
                expected="lora_A, lora_B, lora_magnitude_vector, trained tokens or whole modules",
                remedy="Train it without what this tensor belongs to (biases, for example).",
            )
        elif not tensor.readable:
            refusals.add(
                "dtype_unsupported",
                f"{shown(name)} has a type that cannot be converted.",
                found=tensor.dtype,
                expected="F32, F16 or BF16",
                remedy="Save the adapter in one of these types.",
            )
    if len(tensors_by_role.names) > 1:
        refusals.add(
            "several_adapters",
            "The file contains several adapters.",
            found=", ".join(sorted(tensors_by_role.names)),
            expected="one",
            remedy="Save each with save_pretrained(…, selected_adapters=[…]).",
        )
    modules = {
        path: m
        for path, halves in tensors_by_role.halves.items()
        if (m := _module(path, halves, tensors_by_role, lora, refusals))
    }
    _check_magnitudes(config, tensors_by_role, refusals)
    dtypes = {t.dtype for m in modules.values() for t in (m.a, m.b)} or {
        t.dtype for t in tensors_by_role.saved.values()
    }
    return SourceAdapter(
        directory,
        config,
        dtypes.pop() if len(dtypes) == 1 else "F32",
        max((m.a.shape[0] for m in modules.values()), default=lora.rank),
        modules,
        tensors_by_role.saved,
        _tokens(config, tensors_by_role.tokens, refusals),
    )


def _module(
    path: str,
    halves: dict[str, StoredTensor],
    tensors_by_role: _SortedTensors,
    lora: LoraConfig,
    refusals: Refusals,
) -> Module | None:
    a, b = halves.get("A"), halves.get("B")
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        refusals.add(
            "factors_invalid",
            f"The matrices of module {shown(path)} do not belong together.",
            found=", ".join(f"lora_{half} {list(t.shape)}" for half, t in halves.items()),
            expected="lora_A [rank, in] and lora_B [out, rank]",
            remedy="Gather the weights before saving (ZeRO-3, FSDP); train linear layers only.",
        )
        return None
    if a.shape[0] != lora.rank_of(path):
        refusals.add(
            "rank_mismatch",
            f"Module {shown(path)} has another rank than the config says.",
            found=f"rank {a.shape[0]}",
            expected=f"rank {lora.rank_of(path)}",
            remedy="Use the config that was saved with these weights; the scaling depends on it.",
        )
    scaling = lora.scaling_of(path)
    return Module(a, b, scaling, path in tensors_by_role.embeddings, tensors_by_role.magnitudes.get(path))


def _check_magnitudes(config: Mapping[str, Any], tensors_by_role: _SortedTensors, refusals: Refusals) -> None:
    expected = set(tensors_by_role.halves) if config.get("use_dora") else set()
    for path in sorted(expected ^ set(tensors_by_role.magnitudes)):
        refusals.add(
            "dora_inconsistent",
            f"`use_dora` does not fit the weights of module {shown(path)}.",
            found=f"use_dora = {config.get('use_dora')}, lora_magnitude_vector "
            + ("present" if path in tensors_by_role.magnitudes else "missing"),
            expected="a lora_magnitude_vector for each module if use_dora is true, else none",
            remedy="Save the adapter again with PEFT.",
        )


def _tokens(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], refusals: Refusals
) -> dict[str, tuple[tuple[int, ...], StoredTensor]]:
    """PEFT: a list is for the input embeddings, a mapping for modules by their names."""
    indices = config.get("trainable_token_indices") or {}
    by_name = indices if isinstance(indices, dict) else {"": indices}
    result = {}
    for path, tensor in tensors.items():
        given = next(
            (rows for name, rows in by_name.items() if not name or f".{path}".endswith(f".{name}")), None
        )
        usable = isinstance(given, list) and all(type(row) is int and row >= 0 for row in given)
        if not usable or len(set(given or ())) != len(given or ()) or tensor.shape[:1] != (len(given or ()),):
            refusals.add(
                "tokens_inconsistent",
                f"`trainable_token_indices` does not fit the rows of {shown(path)}.",
                found=f"{shown(given)}, rows of shape {list(tensor.shape)}",
                expected="a token for each row",
                remedy="Use the config that was saved with these weights.",
            )
            continue
        result[path] = (tuple(given or ()), tensor)
    return result


def finite(*arrays: Floats) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)
