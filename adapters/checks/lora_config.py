"""An adapter's LoRA configuration, interpreted as PEFT and vLLM do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The parts of adapter_config.json that the tensor checks need."""

    rank: int
    rank_patterns: tuple[tuple[re.Pattern[str], int], ...]
    targets: tuple[str, ...] | None
    """None for a regular expression, which is not evaluated: an untrusted one may never finish."""
    all_linear: bool
    """`target_modules` is "all-linear": every linear layer except the output layer."""
    layers: tuple[int, ...] | None
    """`layers_to_transform`: the only layers it changes."""
    excluded: tuple[str, ...] | None
    """Targeted modules that were left out; None for a regular expression."""
    alpha: float | None
    """None if unusable; there is a finding then."""
    alpha_patterns: tuple[tuple[re.Pattern[str], float], ...]
    rslora: bool
    parameters: tuple[str, ...] = ()
    """`target_parameters`: weights that are no module of their own, such as `mlp.experts.gate_up_proj`."""

    def rank_of(self, module: str) -> int:
        """Rank of the module at this path, from the first matching pattern, as in PEFT."""
        name = _pattern_name(module)
        return next((rank for pattern, rank in self.rank_patterns if pattern.match(name)), self.rank)

    def scaling_of(self, module: str) -> float:
        """Scaling factor of the product of the matrices, as in PEFT and vLLM: alpha / r (LoRA,
        arXiv:2106.09685), or alpha / √r with rsLoRA (arXiv:2312.03732)."""
        name = _pattern_name(module)
        alpha = next((a for pattern, a in self.alpha_patterns if pattern.match(name)), self.alpha or 0.0)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    @property
    def highest_rank(self) -> int:
        """The `--max-lora-rank` that an engine needs; vLLM also counts patterns that match nothing."""
        return max(self.rank, *(rank for _, rank in self.rank_patterns), 0)

    def excludes(self, target: str) -> bool:
        """Whether modules of that name may have been left out."""
        return self.excluded is None or any(
            _ends_with(target, name) or _ends_with(name, target) for name in self.excluded
        )

    def of_parameter(self, module: str) -> bool:
        """Whether its weights change one of `parameters`: all experts of a layer at once."""
        # PEFT names one weight of a module like the module, and another of the same module `….base_layer`.
        owner = module.removesuffix(".base_layer")
        return any(_ends_with(owner, name.rpartition(".")[0]) for name in self.parameters)

    def targets_module(self, module: str, layer: int | None) -> bool:
        """Whether PEFT would adapt the module at this path. `layer`: its layer's number, if it is in one."""
        if self.of_parameter(module):
            return True
        if any(_ends_with(module, name) for name in self.excluded or ()):
            return False
        if self.layers is not None and layer not in self.layers:
            return False
        if self.all_linear:
            return layer is not None
        return self.targets is None or any(_ends_with(module, target) for target in self.targets)


def _pattern_name(module: str) -> str:
    """What patterns are compared with. PEFT saves the two weights of fused experts as `experts.base_layer`
    and `experts`, but compares the weights' own names."""
    if module.endswith(".experts.base_layer"):
        return module.removesuffix("base_layer") + "gate_up_proj"
    return f"{module}.down_proj" if module.endswith(".experts") else module


def _ends_with(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")
