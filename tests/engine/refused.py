"""The table of what Florin refuses and engines would not, or not in time: how it is made, and what they do."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[Any]]


class Reason(StrEnum):
    REFUSED = "the engine refuses it when it is loaded"
    LIKE_BASE = "200, and it answers as the base model"
    WRONG = "200, and it answers neither as the base nor as the adapter"
    NO_ANSWER = "200, and requests end in an error or in logprobs that are no numbers"
    UNSEEN = "200, and it answers as if nothing was wrong"


Files = Callable[[dict[str, Any], Weights], tuple[dict[str, Any], Weights]]
"""From the sound adapter's config and weights to the broken one's."""


def config(**changes: Any) -> Files:
    return lambda old, weights: (old | changes, weights)


def without(key: str) -> Files:
    return lambda old, weights: ({k: v for k, v in old.items() if k != key}, weights)


def weights_by(change: Callable[[str, NDArray[Any]], NDArray[Any] | None], **changes: Any) -> Files:
    """Each tensor changed, or left out for None."""

    def files(old: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], Weights]:
        made = {name: change(name, array) for name, array in weights.items()}
        return old | changes, {name: np.ascontiguousarray(a) for name, a in made.items() if a is not None}

    return files


def names_by(change: Callable[[str], str]) -> Files:
    return lambda old, weights: (old, {change(name): array for name, array in weights.items()})


def more(name: str, *shape: int, **changes: Any) -> Files:
    return lambda old, weights: (old | changes, weights | {name: np.full(shape, 0.01, np.float32)})


def is_b(name: str) -> bool:
    return ".lora_B." in name


def padded(size: int) -> Callable[[str, NDArray[Any]], NDArray[Any]]:
    """The same adapter with `size` instead of its own rank: the rest are zeros."""

    def change(name: str, array: NDArray[Any]) -> NDArray[Any]:
        axis = 1 if is_b(name) else 0
        widths = [(0, size - length if i == axis else 0) for i, length in enumerate(array.shape)]
        return np.pad(array, widths)

    return change


def spoilt(value: float) -> Files:
    def change(name: str, array: NDArray[Any]) -> NDArray[Any]:
        changed = array.copy()
        if name.endswith("layers.0.self_attn.q_proj.lora_A.weight"):
            changed[0, 0] = value
        return changed

    return weights_by(change)


LAYER = "base_model.model.model.layers.0"
EMBED = "base_model.model.model.embed_tokens"

REFUSED: dict[str, tuple[Files, str, Reason]] = {
    # the table of failures
    "rank over the maximum": (weights_by(padded(16), r=16), "rank_too_high", Reason.REFUSED),
    "rank_pattern over the maximum": (config(rank_pattern={"x": 16}), "rank_too_high", Reason.REFUSED),
    "rank of nothing": (config(r=0), "rank_invalid", Reason.REFUSED),
    "rank as a text": (config(r="8"), "rank_invalid", Reason.REFUSED),
    "DoRA": (config(use_dora=True), "unsupported_feature", Reason.REFUSED),
    "bias": (config(bias="all"), "unsupported_feature", Reason.REFUSED),
    "bias of null": (config(bias=None), "unsupported_feature", Reason.REFUSED),
    "lora_bias": (config(lora_bias=True), "unsupported_feature", Reason.REFUSED),
    "modules_to_save": (config(modules_to_save=["lm_head"]), "unsupported_feature", Reason.REFUSED),
    "PiSSA": (config(init_lora_weights="pissa"), "unsupported_feature", Reason.REFUSED),
    "OLoRA": (config(init_lora_weights="olora"), "unsupported_feature", Reason.REFUSED),
    "CorDA": (config(init_lora_weights="corda"), "unsupported_feature", Reason.REFUSED),
    "LoftQ": (config(init_lora_weights="loftq"), "unsupported_feature", Reason.REFUSED),
    "layer_replication": (config(layer_replication=[[0, 2]]), "unsupported_feature", Reason.REFUSED),
    "aLoRA": (config(alora_invocation_tokens=[1]), "unsupported_feature", Reason.REFUSED),
    "QALoRA": (config(use_qalora=True), "unsupported_feature", Reason.REFUSED),
    "BD-LoRA": (config(use_bdlora={"nblocks": 2}), "unsupported_feature", Reason.REFUSED),
    "no alpha": (without("lora_alpha"), "alpha_invalid", Reason.REFUSED),
    "alpha as a text": (config(lora_alpha="16"), "alpha_invalid", Reason.REFUSED),
    "no target_modules": (without("target_modules"), "target_modules_invalid", Reason.REFUSED),
    "unsupported module": (
        names_by(lambda n: n.replace("q_proj", "z_proj")), "module_not_in_base", Reason.REFUSED,
    ),
    "no PEFT name": (names_by(lambda n: n.replace(".weight", ".x")), "tensor_name_invalid", Reason.REFUSED),
    "a DoRA magnitude": (
        more(f"{LAYER}.mlp.up_proj.lora_magnitude_vector", 352), "tensor_name_invalid", Reason.REFUSED,
    ),
    "shapes too large": (
        weights_by(lambda n, a: np.pad(a, ((0, 1), (0, 0))) if is_b(n) else a), "shape_mismatch", Reason.REFUSED,
    ),
    "whole embeddings": (more(f"{EMBED}.weight", 448, 128), "tensor_name_invalid", Reason.REFUSED),
    "resized embeddings": (more(f"{EMBED}.weight", 450, 128), "vocabulary_changed", Reason.REFUSED),
    "resized embeddings, adapted": (
        lambda c, w: more(f"{EMBED}.lora_embedding_A", 8, 450)(*more(f"{EMBED}.lora_embedding_B", 128, 8)(c, w)),
        "shape_mismatch", Reason.REFUSED,
    ),
    "lora_A alone": (weights_by(lambda n, a: None if is_b(n) else a), "tensor_unpaired", Reason.REFUSED),
    "lora_B alone": (weights_by(lambda n, a: a if is_b(n) else None), "tensor_unpaired", Reason.REFUSED),
    "no tensors": (weights_by(lambda n, a: None), "no_tensors", Reason.REFUSED),
    # 200, but wrong
    "shapes too small": (
        weights_by(lambda n, a: a[:, :64] if ".lora_A." in n else a), "shape_mismatch", Reason.WRONG,
    ),
    "another rank than it says": (config(r=4), "shape_mismatch", Reason.WRONG),
    "another rank by pattern": (config(rank_pattern={"q_proj": 2}), "shape_mismatch", Reason.WRONG),
    "alpha of zero": (config(lora_alpha=0), "alpha_invalid", Reason.LIKE_BASE),
    "alpha below zero": (config(lora_alpha=-16), "alpha_invalid", Reason.WRONG),
    "alpha NaN": (config(lora_alpha=math.nan), "config_invalid", Reason.NO_ANSWER),
    "alpha beyond all": (config(lora_alpha=1e38), "alpha_invalid", Reason.NO_ANSWER),
    "alpha beyond reason": (config(lora_alpha=1e29), "weights_overflow", Reason.NO_ANSWER),
    "weights NaN": (spoilt(math.nan), "weights_not_finite", Reason.NO_ANSWER),
    "weights infinite": (spoilt(math.inf), "weights_not_finite", Reason.NO_ANSWER),
    "lora_B zero": (weights_by(lambda n, a: a * 0 if is_b(n) else a), "no_effect", Reason.LIKE_BASE),
    "names that match nothing": (
        names_by(lambda n: n.replace(".model.model.layers.", ".model.transformer.h.")),
        "module_not_in_base", Reason.LIKE_BASE,
    ),
    "names without their root": (
        names_by(lambda n: n.replace(".model.model.layers.", ".model.layers.")), "module_not_in_base", Reason.LIKE_BASE,
    ),
    "layers that are not there": (
        names_by(lambda n: n.replace(".layers.", ".layers.7")), "layer_out_of_range", Reason.LIKE_BASE,
    ),
    "half of the layers not there": (
        names_by(lambda n: n.replace(".layers.1.", ".layers.2.")), "layer_out_of_range", Reason.WRONG,
    ),
    "another method": (config(peft_type="LOHA"), "not_lora", Reason.UNSEEN),
    "integers": (weights_by(lambda n, a: (a * 100).astype(np.int8)), "dtype_unsupported", Reason.WRONG),
    "another base model": (
        config(base_model_name_or_path="somebody/else-7b"), "base_mismatch", Reason.UNSEEN,
    ),
    "resized base embeddings": (more(f"{EMBED}.base_layer.weight", 450, 128), "vocabulary_changed", Reason.UNSEEN),
    "trained tokens": (config(trainable_token_indices=[5]), "unsupported_feature", Reason.UNSEEN),
    "Arrow": (config(arrow_config={"top_k": 2}), "unsupported_feature", Reason.UNSEEN),
    "a classifier's adapter": (config(task_type="SEQ_CLS"), "unsupported_feature", Reason.UNSEEN),
}  # fmt: skip
"""What is wrong → how it is made, the code by which Florin refuses it, and what an engine does with it."""

SOME_REFUSED = (
    "rank over the maximum", "DoRA", "unsupported module", "shapes too large", "lora_A alone",
    "shapes too small", "another rank than it says", "alpha of zero", "weights NaN", "names that match nothing",
    "half of the layers not there", "another method", "trained tokens",
)  # fmt: skip
"""Those of the short form: of each reason, what it takes for engines to be wrong about it."""
