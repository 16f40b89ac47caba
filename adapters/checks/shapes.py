"""Derives the shapes that a LoRA adapter must have from the base model's config.json.

Engines zero-pad matrices that are too small and ignore modules that match nothing, all with HTTP 200, so
shapes and names must be checked beforehand. What vLLM adapts, under which names and in which sizes, is in a
generated table (`adapters.checks.architectures`); any other architecture is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from adapters.checks.architectures import SizeError, Sizes, architecture_of, as_published, table
from adapters.checks.findings import Findings, shown
from adapters.checks.layers import where

_MAX_LM_HEAD_VOCABULARY = 258_048
"""Largest vocabulary that vLLM's LoRA kernel for lm_head accepts."""
TEXT_NAMES_SINCE = "0.33"
"""Release of vLLM from which on it looks for the language model's own names in a multimodal model."""
_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,5})(?=\.|$)", re.ASCII)
_SUFFIX = ".lora_A.weight"


InOut = tuple[int, int]
"""(in, out)"""

Place = tuple[str, int, str]
"""Where a module's layers are, `model.layers`; its layer; its kind, a key of `BaseShapes.modules`."""


@dataclass(frozen=True, slots=True)
class Module:
    """One kind of module: `model.layers.*.self_attn.q_proj`."""

    sizes: tuple[InOut, ...]
    """Several where layers differ."""
    limits: tuple[int, ...] = ()
    """For each number in the path, how many there are: of layers, then of experts."""
    copies: int = 1
    """Experts that share one pair of matrices, each with its own rank rows: PEFT's target_parameters."""
    layers: tuple[frozenset[int] | None, ...] = ()
    """For each of `sizes`, the layers that have it; None, or none at all: every layer, as far as the config
    tells."""

    def sizes_in(self, layer: int) -> tuple[InOut, ...]:
        """Those that it may have in this layer; empty if the layer has no such module. Engines ignore the
        weights of modules that a layer lacks."""
        if not self.layers:
            return self.sizes
        return tuple(
            size
            for size, layers in zip(self.sizes, self.layers, strict=True)
            if layers is None or layer in layers
        )

    def present(self) -> list[int]:
        """The layers that have it."""
        return [layer for layer in range(self.limits[0] if self.limits else 0) if self.sizes_in(layer)]


@dataclass(frozen=True)
class BaseShapes:
    """Sizes (in, out) of every module of a base model that an adapter may change."""

    modules: Mapping[str, Module]
    """By the engine's name, numbers as `*`."""
    outside: Mapping[str, tuple[int, int]]
    """Modules outside the layers, by full path: `lm_head` and `model.embed_tokens` → (in, out)."""
    vocabulary: int
    """Number of rows of its embeddings."""
    renames: Mapping[str, Any] = field(default_factory=dict)
    """How vLLM turns an adapter's paths into its own."""
    pooling: bool = False
    """An embedding model or the like: `model.` may be missing."""
    language: str = ""
    """Where the language model of a multimodal model is: `language_model`."""
    experts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Where a mixture's experts are, `model.layers.*.mlp.experts` → what an adapter that changes one of them
    must have for it: kinds of modules. Engines refuse a part."""

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Where its layers are: `model.layers`."""
        return tuple(dict.fromkeys(pattern.partition(".*.")[0] for pattern in self.modules))

    @cached_property
    def layers(self) -> int:
        """How many its longest stack has."""
        return max((module.limits[0] for module in self.modules.values() if module.limits), default=0)

    def engine_path(self, path: str) -> str:
        """The engine's name of the module that an adapter calls `path`."""
        return self._within(path) or _renamed(path, self.renames)

    def of_language_model(self, path: str) -> bool:
        """Whether an adapter calls a module `path` that was trained on the language model alone. Engines know
        it by this name only from vLLM TEXT_NAMES_SINCE on."""
        return self._within(path) is not None

    def _within(self, path: str) -> str | None:
        """The engine's name of what the language model alone calls `path`, unless every vLLM knows it so."""
        name = _renamed(path, self.renames)
        if not self.language or self._knows(name):
            return None
        names = [name]
        bare = name.removeprefix("model.")
        if not bare.startswith(("model.", "lm_head")):  # these keep their `model.`, if they have any
            names.append(bare)
        return next((inner for n in names if self._knows(inner := f"{self.language}.{n}")), None)

    def _knows(self, name: str) -> bool:
        return self._located(name) is not None or name in self.outside

    def locate(self, path: str) -> Place | None:
        """The place of `model.layers.3.mlp.up_proj`, or None if the base model has no such path. Does not
        check the numbers."""
        known = self._located(self.engine_path(path))
        if known is None:
            return None
        number = _NUMBER.search(path)
        root = path[: number.start() - 1] if number else ""
        return root, int(number[0]) if number else 0, known

    def knows(self, path: str) -> bool:
        """Whether the base model has a module of this name, whatever its layer's number."""
        return self._knows(self.engine_path(path))

    def around(self, path: str) -> str | None:
        """The name, in the multimodal model around it, of a module that an adapter of the language model
        alone calls `path`: `model.language_model.layers.3.mlp.up_proj`. Every vLLM knows it by this name."""
        inner = self._within(path)
        usual = f"model.language_model.{path.removeprefix('model.')}"
        return usual if inner and _renamed(usual, self.renames) == inner else inner

    def _located(self, path: str) -> str | None:
        pattern = self._pattern(path)
        if pattern in self.modules:
            return pattern
        qualified = f"model.{pattern}"
        return qualified if self.pooling and qualified in self.modules else None

    @staticmethod
    def _pattern(path: str) -> str:
        return _NUMBER.sub("*", path)

    def beyond(self, path: str, module: str) -> str | None:
        """The first number of `path` that is too high, said as a finding's `expected`, or None."""
        for number, limit, what in zip(
            _NUMBER.findall(path), self.modules[module].limits, ("layers", "experts"), strict=False
        ):
            if int(number) >= limit:
                return f"{what} 0 to {limit - 1}"
        return None

    def leaves(self) -> set[str]:
        """The last component of every module path: `q_proj`."""
        return {path.rpartition(".")[2] for path in (*self.modules, *self.outside)}


def base_shapes(name: str, config: dict[str, Any] | None, findings: Findings) -> BaseShapes | None:
    """The shapes of base model `name`, or None with a finding about its config."""
    if config is None:
        findings.add(
            "base_config_missing",
            f"The config.json of base model {name} is unknown, so no adapter's shapes can be checked.",
            found="no config",
            expected="an engine registered with the base model's config (`base_config`: its config.json)",
        )
        return None
    config = as_published(config)
    architecture = architecture_of(config)
    row = table()["architectures"].get(architecture)
    if row is not None and "part" in row:
        row = _with_part(row, config)
    if row is None:
        known, engine = architecture in table()["unknown"], f"vLLM {table()['vllm']}"
        findings.add(
            "unknown_architecture",
            f"Florin cannot check adapters of base model {name}: "
            + (
                f"{engine} supports LoRA for its architecture, but its modules' shapes are unknown."
                if known
                else f"its architecture is not among those for which {engine} supports LoRA."
            ),
            found=shown(config.get("architectures") or config.get("model_type")),
            expected=f"one of the {len(table()['architectures'])} architectures listed in the documentation; "
            "or its shapes taken on your word: register it with --unverified-shapes",
        )
        return None
    try:
        return _shapes(row, config)
    except SizeError as error:
        findings.add(
            "base_config_invalid",
            f"The config.json of base model {name} does not give its shapes.",
            found=str(error),
            expected="positive, plausible and consistent values",
        )
        return None


def _with_part(row: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of a multimodal model around the language model that its config names: LLaVA takes any. None if
    that one is not in the table."""
    part, usual = row["part"]
    text = config.get(part)
    named = text.get("model_type", usual) if isinstance(text, Mapping) else usual
    if named == usual:
        return row
    inner = table()["architectures"].get(table()["model_types"].get(named if isinstance(named, str) else ""))
    root = next((root for root in row["depths"] if root.endswith("model.layers")), None)
    if inner is None or root is None or "mapper" in inner or set(inner["depths"]) != {"model.layers"}:
        return None
    outer = root.removesuffix("model.layers")

    def within(value: Any) -> Any:
        match value:
            case str() if value in inner["fields"]:
                return f"{part}.{value}"
            case list():
                return [within(each) for each in value]
            case Mapping():
                return {key: within(each) for key, each in value.items()}
        return value

    def paths(key: str) -> dict[str, Any]:
        return {f"{outer}{path}": within(value) for path, value in inner.get(key, {}).items()}

    return {
        **{key: value for key, value in row.items() if key in ("mapper", "skipped", "flat", "language")},
        "traits": inner.get("traits", {}),
        "scope": part,
        "modules": paths("modules"),
        "experts": paths("experts"),
        "depths": paths("depths"),
        "vocabulary": within(inner["vocabulary"]),
        **{
            key: {f"{part}.{name}": within(value) for name, value in inner.get(key, {}).items()}
            for key in ("fields", "nulls")
        },
        "aliases": {
            f"{part}.{name}": [f"{part}.{other}" for other in others]
            for name, others in inner.get("aliases", {}).items()
        },
    }


def _shapes(row: Mapping[str, Any], config: Mapping[str, Any]) -> BaseShapes:
    """Raises SizeError."""
    sizes = Sizes(row, config)
    depths = {root: sizes.depth(formula) for root, formula in row["depths"].items()}
    traits = sizes.traits(max(depths.values()))

    def limits(pattern: str) -> tuple[int, ...]:
        return tuple(depths[root] for root in depths if pattern.startswith(f"{root}.*."))[:1]

    modules = {}
    for pattern, kinds in row["modules"].items():
        layers_by_size: dict[InOut, frozenset[int] | None] = {}
        for size_in, size_out, *needs in kinds:
            layers = where(needs[0], traits) if needs else None
            if layers is None or layers:  # a size that no layer has may not even follow from the config
                size = (sizes(size_in), sizes(size_out))
                earlier = layers_by_size.get(size, frozenset())
                layers_by_size[size] = None if earlier is None or layers is None else earlier | layers
        if layers_by_size:
            known = tuple(layers_by_size.values()) if any(layers_by_size.values()) else ()
            modules[pattern] = Module(tuple(layers_by_size), limits(pattern), layers=known)
    experts: dict[str, frozenset[str]] = {}
    for pattern, kind in row.get("experts", {}).items():
        layers = where(kind.get("needs", {}), traits)
        if layers is None or layers:
            expert_modules = _experts(
                pattern, kind, sizes, limits(pattern), () if layers is None else (layers,)
            )
            experts[pattern] = frozenset(expert_modules)
            modules |= expert_modules
    outside = {
        path: (sizes(columns), sizes(rows))
        for path, (columns, rows) in row.get("embeddings", {}).items()
        if path.endswith("embed_tokens") or sizes(rows) <= _MAX_LM_HEAD_VOCABULARY
    }
    return BaseShapes(
        modules,
        outside,
        sizes(row["vocabulary"]),
        renames=row.get("mapper", {}),
        pooling=row.get("pooling", False),
        language=row.get("language", ""),
        experts=experts,
    )


def _experts(
    pattern: str,
    kind: Mapping[str, Any],
    sizes: Sizes,
    limits: tuple[int, ...],
    layers: tuple[frozenset[int], ...],
) -> dict[str, Module]:
    number, hidden, inner = (sizes(kind[key]) for key in ("number", "hidden", "inner"))
    if kind.get("fused"):
        return {
            f"{pattern}.base_layer": Module(((hidden, 2 * inner),), limits, number, layers),
            pattern: Module(((inner, hidden),), limits, number, layers),
        }
    return {
        f"{pattern}.*.{leaf}": Module(
            ((inner, hidden),) if leaf in _DOWN else ((hidden, inner),), (*limits, number), layers=layers
        )
        for leaf in kind["names"]
    }


_DOWN = frozenset({"down_proj", "w2", "linear_v", "output_linear"})
"""Names of an expert's projection back to the hidden size; its other projections lead away from it."""


def _renamed(path: str, renames: Mapping[str, Any]) -> str:
    """As vLLM's WeightsMapper, whose steps these are, in its order."""
    if not renames:
        return path
    name = path + _SUFFIX
    for pattern, new in renames.get("regex", ()):
        name = re.sub(pattern, new or "", name)
    for old, new in renames.get("substring", ()):
        name = name.replace(old, new or "", 1)
    for old, new in renames.get("prefix", ()):
        if name.startswith(old):
            name = (new or "") + name.removeprefix(old)
    for old, new in renames.get("suffix", ()):
        if name.endswith(old):
            name = name.removesuffix(old) + (new or "")
    return name.removesuffix(_SUFFIX)
