"""A plain LoRA adapter that was computed, and how far it is from what it stands for. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.conversion.factors import Doubles, Factors

HIGHEST_RANK = 512
"""The highest that vLLM's --max-lora-rank takes."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""All values that vLLM's --max-lora-rank takes."""
_NO_ERROR = 1e-6
_MAX_PATTERNS = 1000
"""What the checks accept of a pattern's entries, less some."""


@dataclass(frozen=True, slots=True)
class PlainModule:
    path: str
    embedding: bool
    factors: Factors
    """As the file holds them."""
    method: str
    """`unchanged`, `exact` (but for the rounding of the file's type) or `svd`."""
    squared: float
    """Squared Frobenius norms: of the change that was asked for,"""
    lost_squared: float
    """of the difference,"""
    changed_squared: float | None
    """and of the changed weight; None if the base model was not read."""
    values: Doubles
    """Leading singular values of the change,"""
    beyond_squared: float = 0.0
    """and the sum of the squares of the others."""

    @property
    def error(self) -> float:
        """Relative to the change."""
        return _ratio(self.lost_squared, self.squared)

    @property
    def output_error(self) -> float | None:
        """Relative to the module's output, as the root mean square over random inputs: for x of independent
        components, E‖Mx‖² = ‖M‖²_F · E x²."""
        return None if self.changed_squared is None else _ratio(self.lost_squared, self.changed_squared)


def _ratio(part: float, total: float) -> float:
    return math.sqrt(part / total) if total else 0.0


@dataclass(frozen=True, slots=True)
class Plain:
    modules: tuple[PlainModule, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return max((m.factors.rank for m in self.modules), default=0)

    @property
    def error(self) -> float:
        return _ratio(sum(m.lost_squared for m in self.modules), sum(m.squared for m in self.modules))

    @property
    def output_error(self) -> float | None:
        """Over the modules whose base weight was read."""
        known = [(m.lost_squared, m.changed_squared) for m in self.modules if m.changed_squared is not None]
        return _ratio(sum(a for a, _ in known), sum(b for _, b in known)) if known else None

    def error_at(self, rank: int) -> float:
        """What truncating every module at `rank` would lose, before rounding. Singular values that were not
        computed count as lost."""
        parts = [float((m.values[rank:] ** 2).sum()) + m.beyond_squared for m in self.modules]
        return _ratio(sum(parts), sum(m.squared for m in self.modules))

    def choices(self) -> list[tuple[int, float]]:
        """Ranks that engines serve, with the error of each."""
        choices = []
        for rank in RANKS:
            choices.append((rank, self.error_at(rank)))
            if rank >= max((len(m.values) for m in self.modules), default=0) or choices[-1][1] < _NO_ERROR:
                break  # more would not be known to be better
        return choices


def config_of(
    plain: Sequence[PlainModule], source: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:
    """adapter_config.json for these modules, from that of the source; and the rank that each module's
    matrices must have in the file. Those differ from the modules' own only if there would be too many
    patterns."""
    ranks, alphas = _patterns({m.path: m.factors.rank for m in plain}), {}
    padded = {m.path: ranks.get(m.path, ranks.get(_leaf(m.path), 0)) for m in plain}
    scalings = {m.path: m.factors.scaling * padded[m.path] for m in plain}
    alphas = _patterns(scalings)
    rank, alpha = _most(padded.values()), _most(scalings.values())
    config = {
        **source,
        "r": rank,
        "lora_alpha": _whole(alpha),
        "rank_pattern": {key: value for key, value in ranks.items() if value != rank},
        "alpha_pattern": {key: _whole(value) for key, value in alphas.items() if value != alpha},
        "target_modules": sorted({_leaf(m.path) for m in plain}),
        "use_rslora": False, "use_dora": False, "modules_to_save": None, "trainable_token_indices": None,
        "init_lora_weights": True, "layers_to_transform": None, "layers_pattern": None, "exclude_modules":
        None, "ensure_weight_tying": False,
    }  # fmt: skip
    return config, padded


def _patterns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Value by module, or by the modules' last component where all of that name agree. If there would be
    too many entries, the highest value of each name (for ranks: the matrices are padded with zeros)."""
    by_leaf: dict[str, list[Any]] = {}
    for path, value in values.items():
        by_leaf.setdefault(_leaf(path), []).append(value)
    agreed = {leaf: leaf_values[0] for leaf, leaf_values in by_leaf.items() if len(set(leaf_values)) == 1}
    single = {path: value for path, value in values.items() if _leaf(path) not in agreed}
    if len(single) + len(agreed) > _MAX_PATTERNS:
        return {leaf: max(leaf_values) for leaf, leaf_values in by_leaf.items()}
    return {**single, **agreed}


def _most(values: Any) -> Any:
    return Counter(values).most_common(1)[0][0]


def _whole(value: float) -> float:
    """16 rather than 16.0."""
    return int(value) if value == int(value) else value


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def padded(factors: Factors, rank: int) -> Factors:
    """The same product with matrices of a higher rank."""
    more = rank - factors.rank
    return Factors(
        np.pad(factors.a, ((0, more), (0, 0))), np.pad(factors.b, ((0, 0), (0, more))), factors.scaling
    )
