"""Derives the shapes that a LoRA adapter must have from the base model's config.json.

Engines zero-pad matrices that are too small and ignore modules that match nothing, all with HTTP 200, so
shapes and names must be checked beforehand. The Llama-like families below are supported; any other
architecture is a finding. Defaults come from the families' classes in transformers, because config files,
especially the nested ones of multimodal models, omit values that equal the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.checks.findings import Findings, shown

_DIMENSIONS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_MAX_DIMENSION = 2**24
_MAX_LM_HEAD_VOCABULARY = 258_048
"""Largest vocabulary that vLLM's LoRA kernel for lm_head accepts."""


@dataclass(frozen=True, slots=True)
class _Family:
    """How one `model_type` names and sizes its linear layers."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    explicit_head_dim: bool = True
    """Whether `head_dim` in the config is honoured; otherwise it is hidden_size / num_attention_heads."""
    fused: bool = False
    """Has a fused qkv_proj and gate_up_proj, as in Phi-3."""
    embeddings: bool = False
    """Whether vLLM supports LoRA on embed_tokens and lm_head."""


_FAMILIES = {
    "llama": _Family(embeddings=True),
    "mistral": _Family({"num_key_value_heads": 8}),
    "qwen2": _Family({"num_key_value_heads": 32}, explicit_head_dim=False),
    "qwen3": _Family({"num_key_value_heads": 32, "head_dim": 128}, embeddings=True),
    "gemma": _Family({"num_key_value_heads": 16, "head_dim": 256}),
    "gemma2": _Family({"num_key_value_heads": 4, "head_dim": 256}),
    "gemma3_text": _Family({"num_key_value_heads": 4, "head_dim": 256}),
    "phi3": _Family(fused=True, embeddings=True),
}

_NESTED_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32_000,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32_000,
    },
    "gemma3_text": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "vocab_size": 262_208,
    },
}  # fmt: skip
"""Values that a `text_config` of that type may omit. A top-level config always has them."""

_TEXT_ROOTS = ("model",)
_ARCHITECTURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "LlamaForCausalLM": ("llama", _TEXT_ROOTS),
    "MistralForCausalLM": ("mistral", _TEXT_ROOTS),
    "Qwen2ForCausalLM": ("qwen2", _TEXT_ROOTS),
    "Qwen3ForCausalLM": ("qwen3", _TEXT_ROOTS),
    "GemmaForCausalLM": ("gemma", _TEXT_ROOTS),
    "Gemma2ForCausalLM": ("gemma2", _TEXT_ROOTS),
    "Gemma3ForCausalLM": ("gemma3_text", _TEXT_ROOTS),
    "Phi3ForCausalLM": ("phi3", _TEXT_ROOTS),
    # Multimodal: `text_config` determines the family, and only the language model's layers are served.
    "Gemma3ForConditionalGeneration": ("", ("model.language_model", "language_model.model")),
    "LlavaForConditionalGeneration": ("", ("model.language_model", "language_model.model")),
    "Mistral3ForConditionalGeneration": ("", ("model.language_model", "language_model.model", "model")),
}
"""`architectures[0]` of a config → its family and the paths under which an adapter may name its layers."""

KNOWN_ARCHITECTURES = tuple(sorted(_ARCHITECTURES))


@dataclass(frozen=True, slots=True)
class BaseShapes:
    """Sizes (in, out) of every module of a base model that an adapter may change."""

    layers: int
    modules: Mapping[str, tuple[int, int]]
    """Modules within a layer: `self_attn.q_proj` → (in, out)."""
    outside: Mapping[str, tuple[int, int]]
    """Modules outside the layers, by full path: `lm_head` and `model.embed_tokens` → (in, out)."""
    roots: tuple[str, ...]
    vocabulary: int
    """Number of rows of its embeddings."""

    def locate(self, path: str) -> tuple[str, int, str] | None:
        """`model.layers.3.mlp.up_proj` → its root, layer and module; None if the base model has no such path.
        The layer's number is not checked."""
        match = re.fullmatch(r"(.+)\.layers\.(0|[1-9][0-9]{0,5})\.(.+)", path, re.ASCII)
        if match and match[1] in self.roots and match[3] in self.modules:
            return match[1], int(match[2]), match[3]
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
    known = _family(config)
    if known is None:
        findings.add(
            "unknown_architecture",
            f"Florin cannot check adapters of base model {name}.",
            found=shown(config.get("architectures") or config.get("model_type")),
            expected=f"one of {', '.join(KNOWN_ARCHITECTURES)}",
        )
        return None
    family, roots, text = known
    sizes, problem = _sizes(family, text)
    if problem:
        findings.add(
            "base_config_invalid",
            f"The config.json of base model {name} does not give its shapes.",
            found=problem,
            expected="positive, consistent integers",
        )
        return None
    outside = _outside(sizes) if family.embeddings and roots == _TEXT_ROOTS else {}
    return BaseShapes(
        sizes["num_hidden_layers"], _layer_modules(family, sizes), outside, roots, sizes["vocab_size"]
    )


def _family(config: dict[str, Any]) -> tuple[_Family, tuple[str, ...], dict[str, Any]] | None:
    """Family, roots, and the part of the config with the language model's sizes."""
    architectures = config.get("architectures")
    model_type = config.get("model_type")
    if isinstance(architectures, list) and architectures:
        if not isinstance(architectures[0], str) or architectures[0] not in _ARCHITECTURES:
            return None
        family, roots = _ARCHITECTURES[architectures[0]]
        if family:
            return _FAMILIES[family], roots, config
        text = config.get("text_config")
        model_type = text.get("model_type") if isinstance(text, dict) else None
        if not isinstance(model_type, str) or model_type not in _NESTED_DEFAULTS:
            return None
        config = {**_NESTED_DEFAULTS[model_type], **(text or {})}
    else:
        roots = _TEXT_ROOTS
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        return None
    return _FAMILIES[model_type], roots, config


def _sizes(family: _Family, config: dict[str, Any]) -> tuple[dict[str, int], str]:
    """All dimensions, and the first problem with them (empty if none)."""
    given = {**family.defaults, **config}
    sizes: dict[str, Any] = {key: given.get(key) for key in _DIMENSIONS}
    heads_kv = given.get("num_key_value_heads")
    sizes["num_key_value_heads"] = sizes["num_attention_heads"] if heads_kv is None else heads_kv
    head_dim = given.get("head_dim") if family.explicit_head_dim else None
    if head_dim is not None:
        sizes["head_dim"] = head_dim
    for key, value in sizes.items():
        if type(value) is not int or not 0 < value <= _MAX_DIMENSION:
            return sizes, f"{key} = {shown(value)}"
    if "head_dim" not in sizes:
        if sizes["hidden_size"] % sizes["num_attention_heads"]:
            return sizes, "hidden_size not divisible by num_attention_heads, and no head_dim"
        sizes["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    return sizes, ""


def _layer_modules(family: _Family, sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    q = sizes["num_attention_heads"] * sizes["head_dim"]
    kv = sizes["num_key_value_heads"] * sizes["head_dim"]
    common = {"self_attn.o_proj": (q, hidden), "mlp.down_proj": (inner, hidden)}
    if family.fused:
        return {"self_attn.qkv_proj": (hidden, q + 2 * kv), "mlp.gate_up_proj": (hidden, 2 * inner)} | common
    return {
        "self_attn.q_proj": (hidden, q),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
    } | common


def _outside(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
    modules = {"model.embed_tokens": (vocabulary, hidden)}
    if vocabulary <= _MAX_LM_HEAD_VOCABULARY:
        modules["lm_head"] = (hidden, vocabulary)
    return modules
