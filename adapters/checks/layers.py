"""What a base model's layers are where they differ by index: attention in one and Mamba in the next, a plain
MLP first and experts after it.

A row of the table names the *traits* by which its layers differ and the rule for each; its modules say which
traits they need. A rule reads config.json and tells the trait of every layer, as vLLM decides it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapters.checks.findings import shown

MAX_LAYERS = 4096
"""Ten times more than any model has: a config that says more is wrong."""
_MAX = 2**24


class TraitError(Exception):
    """A field does not tell what it must; the message says which, as a finding's `found`."""


class Fields:
    """A config.json's fields that rules read, with defaults for those that it omits."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config = config
        self._defaults = defaults

    def get(self, *names: str) -> Any:
        """The first of them that is there; None counts as missing."""
        for given in (self._config, self._defaults):
            for name in names:
                if given.get(name) is not None:
                    return given[name]
        return None

    def is_null(self, name: str) -> bool:
        return (self._config if name in self._config else self._defaults).get(name) is None

    def number(self, *names: str, usual: int = 0, least: int = 0) -> int:
        """Raises TraitError."""
        value = self.get(*names)
        if value is None:
            return usual
        if type(value) is not int or not least <= value <= _MAX:
            raise TraitError(f"{names[0]} = {shown(value)}")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of layers. Raises TraitError."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(layer) is int for layer in value):
            raise TraitError(f"{name} = {shown(value)}")
        return value

    def words(self, depth: int, *names: str) -> list[str] | None:
        """A word for each layer. Raises TraitError."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise TraitError(f"{names[0]} = {shown(value)}")
        if len(value) < depth:
            raise TraitError(f"{names[0]} for {len(value)} of {depth} layers")
        return value[:depth]


Rule = Callable[[Fields, int], list[str] | None]
"""The trait of each of so many layers, or None if it is one that Florin does not know. Raises TraitError."""

ATTENTION, LINEAR, SPARSE, DENSE = "attention", "linear", "sparse", "dense"

_MIXERS = {
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
}
"""As configs write a layer's type → what it mixes tokens with."""


def _types(fields: Fields, depth: int) -> list[str] | None:
    """Qwen3-Next, Qwen3.5, Granite 4: a list."""
    words = fields.words(depth, "layer_types", "layers_block_type")
    if words is None:  # only Qwen's configs may omit it
        interval = fields.number("full_attention_interval", least=1)
        if not interval:
            return [LINEAR] * depth
        return [ATTENTION if (layer + 1) % interval == 0 else LINEAR for layer in range(depth)]
    return _known(words, _MIXERS)


def _attention_period(fields: Fields, depth: int) -> list[str]:
    """Jamba."""
    period, offset = fields.number("attn_layer_period", least=1), fields.number("attn_layer_offset")
    return [ATTENTION if layer % period == offset else LINEAR for layer in range(depth)]


def _expert_period(fields: Fields, depth: int) -> list[str]:
    """Jamba."""
    period, offset = fields.number("expert_layer_period", least=1), fields.number("expert_layer_offset")
    many = fields.number("num_experts", "num_local_experts") > 1
    return _sparse(depth, lambda layer: many and layer % period == offset)


def _first_dense(fields: Fields, depth: int) -> list[str]:
    """DeepSeek, GLM-4-MoE, AFMoE."""
    first = fields.number("first_k_dense_replace", "num_dense_layers")
    step = fields.number("moe_layer_freq", usual=1, least=1)
    return _sparse(depth, lambda layer: layer >= first and layer % step == 0)


def _mlp_types(fields: Fields, depth: int) -> list[str] | None:
    """EXAONE-MoE, Laguna: a list, which some configs omit."""
    words = fields.words(depth, "mlp_layer_types")
    if words is None:
        first = fields.number("first_k_dense_replace")
        return _sparse(depth, lambda layer: layer >= first)
    return _known(words, {DENSE: DENSE, SPARSE: SPARSE})


def _sparse_step(fields: Fields, depth: int) -> list[str]:
    """Qwen's mixtures of experts."""
    step = fields.number("decoder_sparse_step", usual=1, least=1)
    dense = frozenset(fields.numbers("mlp_only_layers") or ())
    any_experts = fields.number("num_experts", "num_local_experts", usual=1) > 0
    return _sparse(depth, lambda layer: any_experts and layer not in dense and (layer + 1) % step == 0)


def _interval(fields: Fields, depth: int) -> list[str]:
    """Ernie 4.5."""
    first, step = (
        fields.number("moe_layer_start_index"),
        fields.number("moe_layer_interval", usual=1, least=1),
    )
    last = fields.number("moe_layer_end_index", usual=-1, least=-1)
    last = depth - 1 if last == -1 else last
    return _sparse(depth, lambda layer: first <= layer <= last and (layer + 1) % step == 0)


def _interleaved(fields: Fields, depth: int) -> list[str]:
    """Llama 4. vLLM heeds only the step."""
    step = fields.number("interleave_moe_layer_step", usual=1)
    return _sparse(depth, lambda layer: step > 0 and (layer + 1) % step == 0)


def _any_experts(fields: Fields, depth: int) -> list[str]:
    """Granite hybrid: all layers have experts, or none."""
    return [SPARSE if fields.number("num_local_experts", "num_experts") else DENSE] * depth


def _query(fields: Fields, depth: int) -> list[str]:
    """DeepSeek: `q_lora_rank` null means a single query projection."""
    return ["whole" if fields.is_null("q_lora_rank") else "factored"] * depth


def _sliding(fields: Fields, depth: int) -> list[str] | None:
    """Gemma 4: the two kinds of attention have heads of different sizes. The last layer's is always full."""
    words = fields.words(depth, "layer_types")
    if words is None:
        words = ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(depth)]
    words = [*words[:-1], "full_attention"]
    return _known(words, {"sliding_attention": "sliding", "full_attention": "full"})


def _keys_values(fields: Fields, depth: int) -> list[str] | None:
    """Gemma 4: the last layers may have none of their own; full attention's values may be its keys."""
    first = depth - fields.number("num_kv_shared_layers")
    attention = _sliding(fields, depth)
    if attention is None:
        return None
    same = fields.get("attention_k_eq_v") is True
    return [
        "shared" if layer >= first else "keys" if same and attention[layer] == "full" else "own"
        for layer in range(depth)
    ]


def _width(fields: Fields, depth: int) -> list[str]:
    """Gemma 4: where keys and values are shared, the MLP may be twice as wide."""
    first = depth - fields.number("num_kv_shared_layers")
    wide = fields.get("use_double_wide_mlp") is True and first > 0
    return ["wide" if wide and layer >= first else "plain" for layer in range(depth)]


def _layer_inputs(fields: Fields, depth: int) -> list[str]:
    """Gemma 4: embeddings of each layer's own, or none."""
    return ["own" if fields.number("hidden_size_per_layer_input") else "none"] * depth


def _moe_block(fields: Fields, depth: int) -> list[str]:
    """Gemma 4: experts beside the MLP."""
    return [SPARSE if fields.get("enable_moe_block") is True else DENSE] * depth


def _sparse(depth: int, test: Callable[[int], bool]) -> list[str]:
    return [SPARSE if test(layer) else DENSE for layer in range(depth)]


def _known(words: list[str], kinds: Mapping[str, str]) -> list[str] | None:
    return [kinds[word] for word in words] if kinds.keys() >= set(words) else None


RULES: dict[str, Rule] = {
    "types": _types,
    "attention_period": _attention_period,
    "expert_period": _expert_period,
    "first_dense": _first_dense,
    "mlp_types": _mlp_types,
    "sparse_step": _sparse_step,
    "interval": _interval,
    "interleaved": _interleaved,
    "any_experts": _any_experts,
    "query": _query,
    "sliding": _sliding,
    "keys_values": _keys_values,
    "width": _width,
    "layer_inputs": _layer_inputs,
    "moe_block": _moe_block,
}


def traits_of(
    rules: Mapping[str, tuple[str, Mapping[str, Any]]], config: Mapping[str, Any], depth: int
) -> dict[str, list[str]]:
    """Trait → what each layer has of it, without those that are unknown. `rules`: trait → rule and defaults
    for the fields that `config` omits. Raises TraitError."""
    traits = {}
    for trait, (rule, defaults) in rules.items():
        by_layer = RULES[rule](Fields(config, defaults), depth)
        if by_layer is not None:
            traits[trait] = by_layer
    return traits


def where(needs: Mapping[str, list[str]], traits: Mapping[str, list[str]]) -> frozenset[int] | None:
    """The layers whose traits are among `needs`; None for all. Traits that are unknown exclude nothing."""
    known = [(traits[trait], values) for trait, values in needs.items() if trait in traits]
    if not known:
        return None
    return frozenset(
        layer for layer in range(len(known[0][0])) if all(layers[layer] in values for layers, values in known)
    )
