"""One row of the table: vLLM's names for what it adapts, with the formulas of transformers' model.

Runs in the engines' environment. vLLM decides which names count, transformers how their sizes follow from the
config; where both have a module, their sizes must agree.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from adapters.checks.layers import traits_of
from tests.tools.architectures import engine_models, library_models
from tests.tools.architectures.engine_models import Adaptable
from tests.tools.architectures.layered import FIELDS, LAYERED, Layered
from tests.tools.architectures.library_models import LAYERS, Built, Config
from tests.tools.architectures.symbols import Formula, fields_of, formula_of

_SUFFIX = ".lora_A.weight"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
Traits = tuple[tuple[str, str], ...]
"""Trait and value, of one layer."""
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers")


def row(name: str, kind: str) -> dict[str, Any]:
    """The row of an architecture that transformers has too. Raises whatever the libraries raise."""
    cls = library_models.class_of(name)
    try:
        described = _described(name, kind, cls, head_dim=False)
    except AttributeError:  # vLLM needs the key
        described = _described(name, kind, cls, head_dim=True)
    else:
        with contextlib.suppress(Exception):  # a model that vLLM cannot build with it does not heed it
            heeding = _described(name, kind, cls, head_dim=True)
            if heeding["modules"].keys() == described["modules"].keys():
                described = heeding
    return described | _parts(cls.config_class, described["fields"])


def _described(name: str, kind: str, cls: Any, *, head_dim: bool) -> dict[str, Any]:
    """From the models of the default config and of those that make other layers."""
    layered = LAYERED.get(name, Layered({}))
    seen = Seen()
    for variant in layered.configs():
        config = library_models.configured(name, cls, head_dim=head_dim, variant=variant)
        for field, omitted in layered.omitted.items():
            scoped = layered.at(omitted) if isinstance(omitted, str) else omitted
            config.defaults[layered.at(field)] = scoped
        built = library_models.build(cls, config.config)
        config.plain.architectures = [name]
        model, _ = engine_models.build(config.plain)
        traits = traits_of(rules := _rules(layered, cls), _language(config, layered), LAYERS)
        seen.add(config, built, engine_models.adaptable(model), traits)
    return seen.row(kind) | _told({"traits": rules, "scope": layered.part})


def _rules(layered: Layered, cls: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Trait → rule and defaults of its fields."""
    usual = cls.config_class()
    usual = vars(usual)[layered.part] if layered.part else usual
    return {
        trait: (
            rule,
            {
                field: value
                for field in FIELDS[rule]
                if type(value := vars(usual).get(field)) is int
            }
            | layered.defaults,
        )
        for trait, rule in layered.rules.items()
    }  # fmt: skip


def _language(config: Config, layered: Layered) -> dict[str, Any]:
    """The language model's part of config.json."""
    document: dict[str, Any] = json.loads(config.plain.to_json_string(use_diff=False))
    part: dict[str, Any] = document[layered.part] if layered.part else document
    return part


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _parts(kind: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Whether the language model's fields may stand at the top of config.json, as in old
    files, and of which type it must be where the class takes any."""
    parts: dict[str, Any] = {}
    first = kind()
    part = next((field.split(".")[0] for field in fields if "." in field), None)
    if part is None:
        return parts
    with contextlib.suppress(Exception):
        flat = kind(hidden_size=4321)
        if vars(vars(flat)[part]).get("hidden_size") == 4321:
            parts["flat"] = True
    sub = getattr(kind, "sub_configs", {}).get(part)
    if sub is not None and sub.__name__ == "AutoConfig":
        parts["part"] = [part, vars(first)[part].model_type]
    return parts


class Seen:
    """What the models of one architecture's configs have in which layers. Mutable."""

    def __init__(self) -> None:
        self._config: Config | None = None
        self._modules: dict[str, dict[str, set[Traits]]] = {}
        """Pattern → its formulas, as JSON → the traits of the layers that have them."""
        self._experts: dict[str, dict[str, set[Traits]]] = {}
        self._layers: set[Traits] = set()
        self._whole: dict[str, Any] = {}
        """What no layer changes."""

    def add(self, config: Config, built: Built, adaptable: Adaptable, traits: dict[str, list[str]]) -> None:
        sources = _sources(built, adaptable)

        every = [
            tuple((trait, by_layer[layer]) for trait, by_layer in traits.items()) for layer in range(LAYERS)
        ]

        def at(path: str) -> set[Traits]:
            """What is outside the layers counts for all of them."""
            number = _NUMBER.search(path) if traits else None
            return {every[int(number[0])]} if number else set(every)

        paths = (*adaptable.linear, *adaptable.experts)
        self._layers |= set(every)
        for path, sizes in adaptable.linear.items():
            formulas = _formulas(path, sizes, sources, built)
            if formulas is not None:
                self._modules.setdefault(_pattern(path), {}).setdefault(json.dumps(formulas), set()).update(
                    at(path)
                )
        for path, size in adaptable.experts.items():
            if described := _experts(path, size, built):
                self._experts.setdefault(_pattern(path), {}).setdefault(json.dumps(described), set()).update(
                    at(path)
                )
        if self._config:
            for field in config.defaults.keys() - self._config.defaults.keys():
                self._config.defaults[field] = None  # which the default config does without
        else:
            self._config = config
            self._whole = {
                "embeddings": {
                    path: formulas
                    for path, sizes in adaptable.embeddings.items()
                    if (formulas := _embedding(path, sizes, built)) is not None
                },
                "depths": _depths(paths, self._modules, config),
                "vocabulary": _vocabulary(config),
                "mapper": _mapper(adaptable.mapper, built),
                "skipped": list(adaptable.skipped),
                "pooling": adaptable.pooling,
                "language": adaptable.language.rstrip("."),
            }

    def row(self, kind: str) -> dict[str, Any]:
        modules = {
            pattern: [
                [*json.loads(formulas), *([needs] if (needs := self._needs(pattern, layers)) else [])]
                for formulas, layers in kinds.items()
            ]
            for pattern, kinds in self._modules.items()
        }
        experts = {}
        for pattern, kinds in self._experts.items():
            ((described, layers),) = kinds.items()
            experts[pattern] = json.loads(described) | _told({"needs": self._needs(pattern, layers)})
        if not modules and not experts:
            raise ValueError("no module of vLLM's model has a counterpart in transformers")
        document = _told({"kind": kind, "modules": modules, "experts": experts} | self._whole)
        assert self._config
        return document | _fields(document, self._config)

    def _needs(self, pattern: str, layers: set[Traits]) -> dict[str, list[str]]:
        """The fewest traits that tell these layers from all others that were seen."""

        def told(needs: dict[str, list[str]]) -> bool:
            some = {all_of for all_of in self._layers if all(dict(all_of)[t] in v for t, v in needs.items())}
            return some == layers

        names = list(dict(next(iter(self._layers))))
        needs = {name: sorted({dict(layer)[name] for layer in layers}) for name in names}
        if not told(needs):
            raise ValueError(f"the rules do not tell which layers have {pattern}")
        for name in reversed(names):
            fewer = {other: values for other, values in needs.items() if other != name}
            if told(fewer):
                needs = fewer
        return needs


def _pattern(path: str) -> str:
    return _NUMBER.sub("*", path)


def _sources(built: Built, adaptable: Adaptable) -> dict[str, tuple[int, int]]:
    """Transformers' linear layers under vLLM's names."""
    named = {}
    for path, sizes in built.linear.items():
        mapped = adaptable.mapper.map_name(path + _SUFFIX) if adaptable.mapper else path + _SUFFIX
        if mapped:
            named[mapped.removesuffix(_SUFFIX)] = sizes
    return named


def _formulas(
    path: str, sizes: tuple[int, int | None], sources: dict[str, tuple[int, int]], built: Built
) -> list[Formula] | None:
    """(in, out) of a module of vLLM's, or None if transformers has none that is the same."""
    if path in sources:
        layer_sizes = sources[path]
        return [formula_of(layer_sizes[0]), formula_of(layer_sizes[1])] if _same(layer_sizes, sizes) else None
    # Older versions of transformers used other prefixes, which vLLM kept: compare the names from the end.
    best: list[tuple[int, list[Formula]]] = []
    for other, layer_sizes in built.linear.items():
        if _same(layer_sizes, sizes) and (common := _common(path, other)) >= 2:
            best.append((common, [formula_of(layer_sizes[0]), formula_of(layer_sizes[1])]))
    if best:
        most = max(common for common, _ in best)
        candidates = [formulas for common, formulas in best if common == most]
        if all(candidate == candidates[0] for candidate in candidates):
            return candidates[0]
        return None
    return _router(path, sizes, built)


def _same(candidate: tuple[int, int], sizes: tuple[int, int | None]) -> bool:
    return candidate[0] == sizes[0] and (sizes[1] is None or candidate[1] == sizes[1])


def _common(first: str, second: str) -> int:
    """Number of components that two paths share at their ends."""
    pairs = zip(reversed(first.split(".")), reversed(second.split(".")), strict=False)
    number = 0
    for left, right in pairs:
        if left != right:
            break
        number += 1
    return number


def _router(path: str, sizes: tuple[int, int | None], built: Built) -> list[Formula] | None:
    """A mixture's router was a linear layer before transformers 5, and is one in vLLM."""
    parent = path.rpartition(".")[0]
    for other, numbers in built.experts.items():
        hidden, number = _hidden(numbers, sizes[0]), numbers.get("num_experts", 0)
        if _common(parent, other.rpartition(".")[0]) >= 2 and hidden is not None and number == sizes[1]:
            return [formula_of(hidden), formula_of(number)]
    return None


def _hidden(numbers: dict[str, int], value: int) -> int | None:
    return next((n for k, n in numbers.items() if k.startswith("hidden") and n == value), None)


def _inner(numbers: dict[str, int], value: int) -> int | None:
    markers = ("intermediate", "expert_dim", "ffn")
    return next((n for k, n in numbers.items() if any(w in k for w in markers) and n == value), None)


def _experts(path: str, size: engine_models.Experts, built: Built) -> dict[str, Any] | None:
    for other, numbers in built.experts.items():
        hidden, inner = _hidden(numbers, size.hidden), _inner(numbers, size.inner)
        number = next((n for k, n in numbers.items() if "experts" in k and n == size.number), None)
        same_place = _common(path, other) >= 2 or len(set(map(_pattern, built.experts))) == 1
        if same_place and hidden is not None and inner is not None and number is not None:
            experts: dict[str, Any] = {
                "number": formula_of(number), "hidden": formula_of(hidden), "inner": formula_of(inner)
            }  # fmt: skip
            return experts | ({"fused": True} if size.fused else {"names": list(size.names)})
    return None


def _embedding(path: str, sizes: tuple[int, int], built: Built) -> list[Formula] | None:
    pool = built.embeddings if path.endswith("embed_tokens") else built.linear
    for other, layer_sizes in pool.items():
        if other.rpartition(".")[2] == path.rpartition(".")[2] and tuple(layer_sizes) == tuple(sizes):
            return [formula_of(layer_sizes[0]), formula_of(layer_sizes[1])]
    return None


def _depths(paths: Any, modules: dict[str, dict[str, Any]], config: Config) -> dict[str, Formula]:
    """Root of a stack of layers, `model.layers`, → their number."""
    counts: dict[str, int] = {}
    for path in paths:
        if match := _NUMBER.search(path):
            root = path[: match.start() - 1]
            counts[root] = max(counts.get(root, 0), int(match[0]) + 1)
    depths: dict[str, Formula] = {}
    for root, count in counts.items():
        used = {
            field.rpartition(".")[0]
            for pattern, kinds in modules.items() if pattern.startswith(f"{root}.")
            for formulas in kinds for formula in json.loads(formulas) for field in fields_of(formula)
        }  # fmt: skip
        for scope in (*sorted(used, key=len, reverse=True), ""):
            for depth in _DEPTHS:
                field = f"{scope}.{depth}" if scope else depth
                if (
                    root not in depths
                    and field in config.defaults
                    and library_models.value_of(config.plain, field) == count
                ):
                    depths[root] = field
        if root not in depths:
            raise ValueError(f"no field tells the number of layers of {root}")
    return depths


def _vocabulary(config: Config) -> Formula:
    for field in ("text_config.vocab_size", "vocab_size", "thinker_config.text_config.vocab_size"):
        if field in config.defaults:
            return field
    sizes = sorted(field for field in config.defaults if field.endswith(".vocab_size"))
    if len(sizes) != 1:
        raise ValueError("no field tells the vocabulary's size")
    return sizes[0]


def _mapper(mapper: Any, built: Built) -> dict[str, Any]:
    if mapper is None or all(mapper.map_name(path + _SUFFIX) == path + _SUFFIX for path in built.linear):
        return {}
    renames = {
        "regex": [[pattern.pattern, new] for pattern, new in mapper.orig_to_new_regex.items()],
        "substring": [[old, new] for old, new in mapper.orig_to_new_substr.items()],
        "prefix": [[old, new] for old, new in mapper.orig_to_new_prefix.items()],
        "suffix": [
            [old, new] for old, new in mapper.orig_to_new_suffix.items() if ".lora_A.weight".endswith(old)
        ],
    }
    if mapper.orig_to_new_renaming:
        raise ValueError("vLLM renames this model's weights in a way that the table cannot tell")
    return {key: value for key, value in renames.items() if value}


def _fields(described: dict[str, Any], config: Config) -> dict[str, Any]:
    """The fields that the row uses, with what they are when a config.json omits them."""
    used: set[str] = set()

    def collect(value: Any) -> None:
        match value:
            case dict():
                for inner in value.values():
                    collect(inner)
            case list():
                for inner in value:
                    collect(inner)
            case str() if value in config.defaults:
                used.add(value)

    for key in ("modules", "experts", "embeddings", "depths", "vocabulary"):
        collect(described.get(key))
    todo = list(used)
    while todo:
        for inner in fields_of(config.defaults[todo.pop()] or 0) - used:
            used.add(inner)
            todo.append(inner)
    fields = {field: config.defaults[field] for field in sorted(used)}
    result: dict[str, Any] = {"fields": fields}
    if aliases := {field: config.aliases[field] for field in sorted(used) if field in config.aliases}:
        result["aliases"] = aliases
    if nulls := {field: config.nulls[field] for field in sorted(used) if field in config.nulls}:
        result["nulls"] = nulls
    return result
