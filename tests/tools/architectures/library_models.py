"""What transformers builds: module paths and the formulas of their sizes, from a model of symbols.

Runs in the engines' environment.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, field
from typing import Any

from tests.tools.architectures.symbols import Formula, Symbol, formula_of, kept

LAYERS = 8
"""A model of so many layers shows every pattern: transformers' configs alternate within six at most."""
_DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
)


@dataclass
class Config:
    """A transformers config whose integers are symbols."""

    config: Any
    plain: Any
    """The same with integers."""
    defaults: dict[str, Formula | None] = field(default_factory=dict)
    """Field → what it is when a config.json omits it; None: it must not."""
    nulls: dict[str, Formula] = field(default_factory=dict)
    """Field → what it is when a config.json says null, where that is different."""
    aliases: dict[str, list[str]] = field(default_factory=dict)


def _arguments(plain: Any, cls: Any, prefix: str, *, symbols: bool, values: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that give every integer of a config a value of its own."""
    arguments: dict[str, Any] = {}
    fields = getattr(cls, "__dataclass_fields__", {})
    for key, value in vars(plain).items():
        path = f"{prefix}{key}"
        if type(value) is not int or key.startswith("_") or key not in fields or fields[key].default is None:
            continue
        new = values.get(path, min(value, LAYERS) if key in _DEPTHS else value)
        arguments[key] = Symbol(new, path) if symbols else new
    for key in getattr(cls, "sub_configs", {}):
        part = vars(plain).get(key)
        if part is None or isinstance(part, dict):
            continue
        inner = _arguments(part, type(part), f"{prefix}{key}.", symbols=symbols, values=values)
        arguments[key] = {"model_type": part.model_type, **inner} if part.model_type else inner
    return arguments


def varied(arguments: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    """With the values of `variant`, by path."""
    for path, value in variant.items():
        *parents, leaf = path.split(".")
        place = arguments
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = copy.deepcopy(value)
    return arguments


CLASSES = {
    "BertSpladeSparseEmbeddingModel": "BertForMaskedLM",
    "BgeM3EmbeddingModel": "XLMRobertaModel",
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "HF_ColBERT": "BertModel",
    "IQuestCoderForCausalLM": "LlamaForCausalLM",
    "InternLM3ForCausalLM": "LlamaForCausalLM",
    "InternS1ForConditionalGeneration": "InternVLForConditionalGeneration",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "MiMoForCausalLM": "Qwen2ForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
    "Qwen2_5OmniModel": "Qwen2_5OmniForConditionalGeneration",
    "Qwen3ASRRealtimeGeneration": "Qwen3ASRForConditionalGeneration",
    "TeleChat3ForCausalLM": "LlamaForCausalLM",
    "VoyageQwen3BidirectionalEmbedModel": "Qwen3Model",
}
"""Names of models whose code came with them → transformers' class of the same layers and config fields."""


def class_of(name: str) -> Any:
    """Transformers' class of an architecture, or None."""
    import transformers

    return getattr(transformers, CLASSES.get(name, name), None)


EXTRA: dict[str, dict[str, Any]] = {
    "AfmoeForCausalLM": {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    "Glm4vMoeForConditionalGeneration": {"text_config.use_qk_norm": False},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1},
    "HYV3ForCausalLM": {"first_k_dense_replace": 1},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "LongcatFlashForCausalLM": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "MiniMaxM2ForCausalLM": {"rotary_dim": 64, "scoring_func": "sigmoid"},
    "Qwen3VLMoeForConditionalGeneration": {"text_config.norm_topk_prob": True},
    "XLMRobertaModel": {"position_embedding_type": "absolute"},
}
"""Keys that the published config.json files have, vLLM reads, and transformers' classes do not declare."""
_PARTS: dict[str, dict[str, Any]] = {
    "Gemma4ForConditionalGeneration": {"vision_config": {}, "audio_config": {}},
    "Gemma4UnifiedForConditionalGeneration": {"vision_config": {}, "audio_config": {}},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
}
"""What a config needs to be given, because a model of its class cannot be built of the defaults."""


def configured(
    name: str,
    cls: Any,
    values: dict[str, Any] | None = None,
    *,
    head_dim: bool = False,
    variant: dict[str, Any] | None = None,
) -> Config:
    """The config of a model class with its defaults, at most LAYERS layers, and `values` by path. `head_dim`:
    with this key too where the class does not declare it; most models heed it all the same. `variant`: what
    makes other layers, by path (see `layered`)."""
    declared = cls.config_class

    def kind(**arguments: Any) -> Any:
        return declared(**{**_PARTS.get(name, {}), **arguments})

    kind.sub_configs = declared.sub_configs  # type: ignore[attr-defined]
    first = kind()
    plain, arguments = (
        varied(
            _arguments(first, declared, "", symbols=symbols, values=values or {}),
            {
                path: Symbol(value, path) if symbols and type(value) is int else value
                for path, value in (variant or {}).items()
            },
        )
        for symbols in (False, True)
    )
    plain = kind(**plain)
    symbolic = kind(**copy.deepcopy(arguments))
    result = Config(symbolic, plain)
    _name(symbolic, first, "", result)
    _null(kind, arguments, result)
    for path, value in EXTRA.get(name, {}).items():
        _extend(result, path, value, values or {})
    if head_dim:
        for scope in ("", "text_config."):
            hidden, heads = f"{scope}hidden_size", f"{scope}num_attention_heads"
            if {hidden, heads} <= result.defaults.keys() and f"{scope}head_dim" not in result.defaults:
                size = 2 * value_of(plain, hidden) // value_of(plain, heads)
                _extend(result, f"{scope}head_dim", size, values or {})
                result.defaults[f"{scope}head_dim"] = ["//", hidden, heads]
                result.nulls[f"{scope}head_dim"] = ["//", hidden, heads]
    return result


def value_of(config: Any, path: str) -> Any:
    """The value of a field, by its path."""
    for key in path.split("."):
        config = vars(config).get(key)
    return config


def _extend(config: Config, path: str, value: Any, values: dict[str, Any]) -> None:
    """Add a field that the class does not declare."""
    value = values.get(path, value)
    *parents, leaf = path.split(".")
    symbol = Symbol(value, path) if type(value) is int else value
    for top, given in ((config.plain, value), (config.config, symbol)):
        place = value_of(top, ".".join(parents)) if parents else top
        setattr(place, leaf, given)
    if type(value) is int:
        config.defaults[path] = value


def _null(kind: Any, arguments: dict[str, Any], result: Config) -> None:
    """What the config makes of a field that is null."""
    for path in list(result.defaults):
        *parents, leaf = path.split(".")
        given = copy.deepcopy(arguments)
        place = given
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = None
        try:
            config: Any = kind(**given)
            for parent in parents:
                config = vars(config)[parent]
            value = vars(config).get(leaf)
        except Exception:  # noqa: BLE001  # a config that refuses null says so in many ways
            continue
        if isinstance(value, int) and formula_of(value) != result.defaults[path]:
            result.nulls[path] = formula_of(value)


def _name(config: Any, first: Any, prefix: str, result: Config) -> None:
    """Give each integer its own name, and note from what it was computed."""
    aliases = getattr(type(config), "attribute_map", {})
    for key, value in list(vars(config).items()):
        if not isinstance(value, int) or isinstance(value, bool) or key.startswith("_"):
            continue
        path = f"{prefix}{key}"
        formula = formula_of(value)
        original = vars(first).get(key, value)
        result.defaults[path] = original if formula in (path, int(value)) else formula
        vars(config)[key] = Symbol(int(value), path)
        if names := [f"{prefix}{alias}" for alias, real in aliases.items() if real == key]:
            result.aliases[path] = names
    for key in getattr(type(config), "sub_configs", {}):
        part, other = vars(config).get(key), vars(first).get(key)
        if part is not None and not isinstance(part, dict):
            _name(part, other, f"{prefix}{key}.", result)


@dataclass
class Built:
    """The modules of a transformers model."""

    linear: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Path → (in, out), symbols where they come from the config."""
    embeddings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Path → (rows, columns)."""
    experts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Path of a module with three-dimensional weights → its integers by name."""


def _modules() -> list[Any]:
    """The Python modules in which the models' classes stand."""
    return [
        module for name, module in sys.modules.items()
        if name.startswith("transformers.models.") and ".modeling_" in name
    ]  # fmt: skip


def build(cls: Any, config: Any) -> Built:
    import torch
    from transformers.pytorch_utils import Conv1D

    for part in _modules():
        vars(part)["int"] = kept
    with torch.device("meta"):
        model = cls(config)
    result = Built()
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            result.linear[path] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            result.linear[path] = (module.nx, module.nf)
        elif isinstance(module, torch.nn.Embedding):
            result.embeddings[path] = (module.num_embeddings, module.embedding_dim)
        elif any(p.ndim == 3 for p in module.parameters(recurse=False)):
            numbers: dict[str, int] = {k: v for k, v in vars(module).items() if isinstance(v, Symbol)}
            result.experts[path] = numbers
    return result
