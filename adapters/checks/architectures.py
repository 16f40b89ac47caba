"""The table of architectures, and how its formulas become numbers.

`architectures.json` is generated from vLLM's registry and transformers' models, by
`tests/tools/architectures`: for every architecture whose class supports LoRA in vLLM, the modules that vLLM
adapts, by the names that it gives them, and their sizes as formulas over the fields of config.json. Nothing
of the table is ever run as code: a formula is an integer, a field's name, or `[operator, left, right]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from adapters.checks.findings import shown
from adapters.checks.layers import MAX_LAYERS, TraitError, traits_of

_MAX_SIZE = 2**24
_FILE = "architectures.json"


class SizeError(Exception):
    """A config.json does not give a size; the message says which, as a finding's `found`."""


@cache
def table() -> Mapping[str, Any]:
    """Read once, when the first adapter is checked."""
    read: Mapping[str, Any] = json.loads(files("adapters.checks").joinpath(_FILE).read_bytes())
    return read


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The name under which the table has this config's model, or None."""
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return named[0] if isinstance(named[0], str) else None
    kind = config.get("model_type")
    return table()["model_types"].get(kind) if isinstance(kind, str) else None


_OF_FULL_ATTENTION = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Gemma 4's fields for its layers of full attention, by their names in other layers."""


def as_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json with the fields that transformers 5.19 replaces when it saves one: `per_layer_config`
    has what single layers have of their own."""
    text, layers = config.get("text_config"), config.get("per_layer_config")
    published = {**config, "text_config": as_published(text)} if isinstance(text, Mapping) else {**config}
    own = layers.values() if isinstance(layers, Mapping) else ()
    for name, usual in _OF_FULL_ATTENTION.items():
        values = [layer[name] for layer in own if isinstance(layer, Mapping) and name in layer]
        if values and all(value == values[0] for value in values):
            published.setdefault(usual, values[0])
    return published


@dataclass
class Sizes:
    """Evaluates a row's formulas over one config.json."""

    row: Mapping[str, Any]
    config: Mapping[str, Any]
    _known: dict[str, int] = field(default_factory=dict)

    def __call__(self, formula: Any) -> int:
        """A positive integer. Raises SizeError."""
        value = self._value(formula)
        if not 0 < value <= _MAX_SIZE:
            raise SizeError(f"{_written(formula)} = {value}")
        return value

    def depth(self, formula: Any) -> int:
        """A number of layers. Raises SizeError."""
        value = self(formula)
        if value > MAX_LAYERS:
            raise SizeError(f"{_written(formula)} = {value}")
        return value

    def traits(self, depth: int) -> dict[str, list[str]]:
        """What each layer is, where layers differ. Raises SizeError."""
        scope = self.row.get("scope")
        part = self.config.get(scope, self.config if self.row.get("flat") else None) if scope else self.config
        try:
            return traits_of(self.row.get("traits", {}), part if isinstance(part, Mapping) else {}, depth)
        except TraitError as error:
            raise SizeError(str(error)) from error

    def _value(self, formula: Any) -> int:
        if isinstance(formula, int):
            return formula
        if isinstance(formula, str):
            if formula not in self._known:
                self._known[formula] = self._field(formula)
            return self._known[formula]
        sign, left, right = formula[0], self._value(formula[1]), self._value(formula[2])
        match sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
        if right == 0 or left % right:
            raise SizeError(f"{_written(formula[1])} not divisible by {_written(formula[2])}")
        return left // right

    def _field(self, path: str) -> int:
        given, value = self._given(path)
        if value is None:
            nulls = self.row.get("nulls", {})
            default = nulls[path] if given and path in nulls else self.row["fields"][path]
            if default is None or (given and path not in nulls and isinstance(default, int)):
                raise SizeError(f"{path} = {shown(None)}")
            return self(default)
        if type(value) is not int or not 0 < value <= _MAX_SIZE:
            raise SizeError(f"{path} = {shown(value)}")
        return value

    def _given(self, path: str) -> tuple[bool, Any]:
        """Whether config.json has the field, under its own or another name, and its value."""
        for name in (path, *self.row.get("aliases", {}).get(path, ())):
            place: Any = self.config
            *parents, leaf = name.split(".")
            if parents and parents[0] not in self.config:
                if not self.row.get("flat"):
                    raise SizeError(f"no {parents[0]}")
                parents = []
            elif parents and not isinstance(self.config[parents[0]], Mapping):
                raise SizeError(f"{parents[0]} = {shown(self.config[parents[0]])}")
            for parent in parents:
                place = place.get(parent) if isinstance(place, Mapping) else None
            if isinstance(place, Mapping) and leaf in place:
                return True, place[leaf]
        return False, None


def _written(formula: Any) -> str:
    if isinstance(formula, list):
        return f"{_written(formula[1])} {formula[0]} {_written(formula[2])}"
    return str(formula)
