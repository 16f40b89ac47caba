"""What an adapter's config says about its weights, as PEFT and vLLM both mean it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What of adapter_config.json the check of the tensors needs."""

    rank: int
    rank_patterns: tuple[tuple[re.Pattern[str], int], ...]
    targets: tuple[str, ...] | None
    """None: an expression over module names, which is not evaluated: a stranger's may take for ever."""
    all_linear: bool
    """`target_modules` is PEFT's word for every linear layer but the output's."""
    layers: tuple[int, ...] | None
    """`layers_to_transform`: the only layers it changes."""
    excluded: tuple[str, ...] | None
    """Names of modules that were left out although they are targeted; None: an expression."""
    alpha: float | None
    """None: it is unusable, and there is a finding."""
    alpha_patterns: tuple[tuple[re.Pattern[str], float], ...]
    rslora: bool

    def rank_of(self, module: str) -> int:
        """Rank of the module at this path: of the first pattern that fits, as in PEFT."""
        for pattern, rank in self.rank_patterns:
            if pattern.match(module):
                return rank
        return self.rank

    def scaling_of(self, module: str) -> float:
        """What the product of the matrices is multiplied by, as in PEFT and vLLM: alpha / r, or with rsLoRA
        alpha / √r (arXiv:2312.03732)."""
        alpha = next((a for pattern, a in self.alpha_patterns if pattern.match(module)), self.alpha or 0.0)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    @property
    def highest_rank(self) -> int:
        """What an engine's `--max-lora-rank` must reach: it counts patterns that match nothing, too."""
        return max(self.rank, *(rank for _, rank in self.rank_patterns), 0)

    def excludes(self, target: str) -> bool:
        """Whether some or all modules of that name may have been left out."""
        return self.excluded is None or any(
            _ends_with(target, name) or _ends_with(name, target) for name in self.excluded
        )

    def targets_module(self, module: str, layer: int | None) -> bool:
        """Whether PEFT would adapt the module at this path, in this layer, if it is in one."""
        if any(_ends_with(module, name) for name in self.excluded or ()):
            return False
        if self.layers is not None and layer not in self.layers:
            return False
        if self.all_linear:
            return layer is not None
        return self.targets is None or any(_ends_with(module, target) for target in self.targets)


def _ends_with(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")
