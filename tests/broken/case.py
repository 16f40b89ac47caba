"""An adapter as a value, and the strategy for sound ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from adapters.model import BaseModel
from tests.support.lora import (
    BYTES,
    FAMILIES,
    Family,
    Tensors,
    lora_config,
    lora_tensors,
    safetensors_bytes,
    with_value,
    write_adapter,
)

MAX_RANK = 8
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEMPLATE_HASH = hashlib.sha256(TEMPLATE.encode()).hexdigest()


class CannotBreakError(Exception):
    """The adapter lacks what this fault would break."""


@dataclass(frozen=True)
class Case:
    """An adapter and the base that it claims to fit."""

    family: Family
    config: dict[str, Any]
    tensors: Tensors
    base: BaseModel
    layers: tuple[int, ...]
    dtype: str
    values: dict[str, tuple[float, int | None]] = field(default_factory=dict)
    """Tensor → a weight that it holds, everywhere or in one element."""
    files: dict[str, str] = field(default_factory=dict)
    """What lies beside the two files."""
    damage: tuple[Callable[[bytes], bytes], ...] = ()
    """Done to the weight file last."""
    config_text: str | None = None
    """Instead of `config` as JSON."""
    seed: int | None = None
    """With one, weights of the order of 0.05 instead of all the same."""

    def write(self, directory: Path) -> Path:
        write_adapter(directory, config=self.config, tensors=self.tensors)
        raw = safetensors_bytes(self.tensors)
        if self.seed is not None:
            raw = self._seeded(raw)
        for name, (value, at) in self.values.items():
            if name in self.tensors:  # another fault may have taken it away
                raw = with_value(raw, name, value, None if at is None else at % self.elements(name))
        for change in self.damage:
            with suppress(KeyError, ValueError):  # what it would damage is broken already
                raw = change(raw)
        (directory / "adapter_model.safetensors").write_bytes(raw)
        for name, text in self.files.items():
            (directory / name).write_text(text)
        if self.config_text is not None:
            (directory / "adapter_config.json").write_text(self.config_text)
        return directory

    def _seeded(self, raw: bytes) -> bytes:
        numbers = np.random.default_rng(self.seed)
        size = sum(self.elements(name) * BYTES[dtype] for name, (dtype, _) in self.tensors.items())
        parts = []
        for name, (dtype, _) in self.tensors.items():
            drawn = numbers.normal(scale=0.05, size=self.elements(name)).astype("<f4")
            match dtype:
                case "F16":
                    parts.append(drawn.astype("<f2").tobytes())
                case "BF16":
                    parts.append((drawn.view("<u4") >> 16).astype("<u2").tobytes())
                case _:
                    parts.append(drawn.tobytes())
        return raw[: len(raw) - size] + b"".join(parts)

    def configured(self, **changes: Any) -> Case:
        return replace(self, config=self.config | changes)

    def renamed(self, old: str, new: str) -> Case:
        return replace(self, tensors={new if n == old else n: t for n, t in self.tensors.items()})

    def holding(self, names: Iterable[str], value: float, at: int | None = None) -> Case:
        return replace(self, values=self.values | dict.fromkeys(names, (value, at)))

    def with_file(self, name: str, content: Any) -> Case:
        text = content if isinstance(content, str) else json.dumps(content)
        return replace(self, files=self.files | {name: text})

    def elements(self, name: str) -> int:
        return math.prod(self.tensors[name][1])

    def halves(self, half: str) -> list[str]:
        return [n for n in self.tensors if n.endswith((f"lora_{half}.weight", f"lora_embedding_{half}"))]


Change = Callable[[st.DrawFn, Case], Case]
FAULTS: dict[Change, str] = {}
"""A way to break an adapter, and the code by which that must be refused."""
ODDITIES: dict[Change, str] = {}
"""What is odd about an adapter, and the code of its warning."""


def fault(code: str) -> Callable[[Change], Change]:
    return lambda change: registered(FAULTS, change, code)


def oddity(code: str) -> Callable[[Change], Change]:
    return lambda change: registered(ODDITIES, change, code)


def registered(table: dict[Change, str], change: Change, code: str) -> Change:
    table[change] = code
    return change


@st.composite
def sound(draw: st.DrawFn, families: tuple[Family, ...] = FAMILIES, max_rank: int = MAX_RANK) -> Case:
    """An adapter that must pass without a warning."""
    family = draw(st.sampled_from(families))
    leaves = sorted(module.rpartition(".")[2] for module in family.modules)
    outside = sorted(module.rpartition(".")[2] for module in family.outside)
    kinds = draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True))
    if outside:
        kinds += draw(st.lists(st.sampled_from(outside), unique=True))
    rank = draw(st.integers(1, max_rank))
    layers = tuple(sorted(draw(st.sets(st.integers(0, family.layers - 1), min_size=1))))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    ranks = draw(st.dictionaries(st.sampled_from(kinds), st.integers(1, max_rank), max_size=2))
    tensors: Tensors = {}
    for kind in kinds:
        own = ranks.get(kind, rank)
        tensors |= lora_tensors(family, rank=own, kinds=(kind,), layers=layers, dtype=dtype)
    tensors = dict(draw(st.permutations(list(tensors.items()))))
    config = lora_config(
        rank=rank,
        kinds=tuple(kinds),
        lora_alpha=draw(st.integers(1, 64) | st.floats(0.01, 64)),
        use_rslora=draw(st.booleans()),
        rank_pattern=ranks,
        alpha_pattern=draw(
            st.dictionaries(st.sampled_from(kinds), st.integers(1, 32) | st.floats(0.1, 32), max_size=2)
        ),
        **draw(st.sampled_from(HARMLESS)),
    )
    if draw(st.booleans()):
        every = [] if set(kinds) & set(outside) else ["all-linear"]
        config["target_modules"] = draw(st.sampled_from([rf"(.*\.)?({'|'.join(kinds)})", *every]))
    case = Case(family, config, tensors, family.base, layers, dtype)
    return draw(st.sampled_from(BESIDE))(case)


HARMLESS: tuple[dict[str, Any], ...] = (
    {},
    {"task_type": None, "inference_mode": True, "peft_version": "0.21.2", "auto_mapping": None},
    {"init_lora_weights": "gaussian", "lora_dropout": 0.1},
    {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
    {"loftq_config": {}, "corda_config": None, "megatron_config": None, "megatron_core": "megatron.core"},
    {"exclude_modules": ["score"], "revision": "main", "unknown_to_everybody": {"x": [1]}},
    {"modules_to_save": [], "trainable_token_indices": None, "layer_replication": [], "target_parameters": None},
    {"base_model_name_or_path": "/somewhere/else/TINY-base/"},
)  # fmt: skip
"""What may stand in a config without any effect on what the weights mean."""


def templated(case: Case) -> Case:
    """It came with the base's own chat template."""
    base = replace(case.base, chat_template=TEMPLATE_HASH)
    return replace(case, base=base).with_file("tokenizer_config.json", {"chat_template": TEMPLATE + "\n"})


def padded(case: Case) -> Case:
    """It was trained with a padding token of its own, which no request ever holds."""
    return case.with_file("added_tokens.json", {"<pad>": 64}).with_file(
        "tokenizer_config.json", {"pad_token": "<pad>"}
    )


def documented(case: Case) -> Case:
    return case.with_file("README.md", "what it is").with_file("special_tokens_map.json", {})


BESIDE: tuple[Callable[[Case], Case], ...] = (lambda case: case, templated, padded, documented)


def some_tensor(draw: st.DrawFn, case: Case, containing: str = "") -> str:
    names = [name for name in case.tensors if containing in name]
    if not names:
        raise CannotBreakError
    return draw(st.sampled_from(names))


def in_layers(draw: st.DrawFn, case: Case) -> str:
    return some_tensor(draw, case, ".layers.")
