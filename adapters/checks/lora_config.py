"""An adapter's LoRA configuration, interpreted as PEFT and vLLM do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adapters.checks.suffixes import SuffixIndex


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The parts of adapter_config.json that the tensor checks need."""

    rank: int
    rank_patterns: SuffixIndex[int]
    targets: SuffixIndex[str] | None
    """None for a regular expression, which is not evaluated: an untrusted one may never finish."""
    all_linear: bool
    """`target_modules` is "all-linear": every linear layer except the output layer."""
    layers: frozenset[int] | None
    """`layers_to_transform`: the only layers it changes."""
    excluded: SuffixIndex[str] | None
    """Targeted modules that were left out; None for a regular expression."""
    alpha: float | None
    """None if unusable; there is a finding then."""
    alpha_patterns: SuffixIndex[float]
    rslora: bool
    parameters: SuffixIndex[str]
    """The modules of `target_parameters`, weights that are no module of their own: `mlp.experts` for
    `mlp.experts.gate_up_proj`."""
    _known: dict[str, tuple[int, float]] = field(default_factory=dict, compare=False, repr=False)
    """Mutable: rank and scaling by module."""

    def rank_of(self, module: str) -> int:
        """Rank of the module at this path, from the first matching pattern, as in PEFT."""
        return self._rank_and_scaling(module)[0]

    def scaling_of(self, module: str) -> float:
        """Scaling factor of the product of the matrices, as in PEFT and vLLM: alpha / r (LoRA,
        arXiv:2106.09685), or alpha / √r with rsLoRA (arXiv:2312.03732)."""
        return self._rank_and_scaling(module)[1]

    def _rank_and_scaling(self, module: str) -> tuple[int, float]:
        if module not in self._known:
            name = _pattern_name(module)
            rank = self.rank_patterns.first(name) or self.rank
            alpha = self.alpha_patterns.first(name) or self.alpha or 0.0
            self._known[module] = rank, alpha / (math.sqrt(rank) if self.rslora else rank)
        return self._known[module]

    @property
    def highest_rank(self) -> int:
        """The `--max-lora-rank` that an engine needs; vLLM also counts patterns that match nothing."""
        return max((self.rank, *self.rank_patterns.values))

    def excluded_targets(self) -> set[str]:
        """Targets of which modules may have been left out."""
        if self.targets is None or self.excluded is None:
            return set() if self.targets is None else set(self.targets.values)
        shorter = {target for target in self.targets.values if self.excluded.each(target)}
        return shorter.union(*(self.targets.each(name) for name in self.excluded.values))

    def of_parameter(self, module: str) -> bool:
        """Whether its weights change one of the parameters: all experts of a layer at once."""
        # PEFT names one weight of a module like the module, and another of the same module `….base_layer`.
        return bool(self.parameters.each(module.removesuffix(".base_layer")))

    def targets_module(self, module: str, layer: int | None) -> bool:
        """Whether PEFT would adapt the module at this path. `layer`: its layer's number, if it is in one."""
        if self.of_parameter(module):
            return True
        if self.excluded is not None and self.excluded.each(module):
            return False
        if self.layers is not None and layer not in self.layers:
            return False
        if self.all_linear:
            return layer is not None
        return self.targets is None or bool(self.targets.each(module))


def _pattern_name(module: str) -> str:
    """What patterns are compared with. PEFT saves the two weights of fused experts as `experts.base_layer`
    and `experts`, but compares the weights' own names."""
    if module.endswith(".experts.base_layer"):
        return module.removesuffix("base_layer") + "gate_up_proj"
    return f"{module}.down_proj" if module.endswith(".experts") else module
