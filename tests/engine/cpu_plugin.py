"""A plugin for vLLM 0.32's CPU build, for the engines of test_bases.py and test_vision.py: without it, that build
cannot serve adapters of mixtures of experts, nor Qwen2.5-VL and LLaVA. vLLM's plugin mechanism runs `register` in
each of its processes.

With `--enable-lora`, vLLM always computes experts with Triton, which the CPU build lacks, and the engine dies at
the first request. `experts` does the same in plain torch. What adapters' files mean, and where their matrices
go, stays vLLM's own business.

vLLM imports one function each of Qwen2-VL's and Pixtral's image processors (LLaVA may have Pixtral's encoder) from
modules that need torchvision, which the engines' environment lacks; the same functions are in modules that do not.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch.nn.functional import silu

_IMAGES = ("qwen2_vl", "pixtral")


def register() -> None:
    for name in _IMAGES:
        module = f"transformers.models.{name}.image_processing"
        if f"{module}_{name}" not in sys.modules:
            sys.modules[f"{module}_{name}"] = importlib.import_module(f"{module}_pil_{name}")
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    TritonExperts.apply = experts


def experts(  # noqa: PLR0917 - vLLM's signature
    self: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    *_: object,
    **__: object,
) -> None:
    """One token and one of its experts at a time."""
    output.zero_()
    lora = self._lora_context
    slots = None if lora is None else lora.punica_wrapper.token_lora_indices
    for row, hidden in enumerate(hidden_states):
        slot = -1 if slots is None else int(slots[row])
        for expert, weight in zip(topk_ids[row].tolist(), topk_weights[row], strict=True):
            both = w1[expert] @ hidden
            if self.w1_bias is not None:
                both = both + self.w1_bias[expert]
            if slot >= 0:
                pairs = zip(lora.w13_lora_a_stacked, lora.w13_lora_b_stacked, strict=True)
                halves = [b[slot, expert] @ (a[slot, expert] @ hidden) for a, b in pairs]
                both = both + joined(halves, activation.name)
            inner = activated(both, activation.name)
            out = w2[expert] @ inner
            if self.w2_bias is not None:
                out = out + self.w2_bias[expert]
            if slot >= 0:
                a, b = lora.w2_lora_a_stacked[0], lora.w2_lora_b_stacked[0]
                out = out + b[slot, expert] @ (a[slot, expert] @ inner)
            output[row] += weight * out


def joined(halves: list[torch.Tensor], activation: str) -> torch.Tensor:
    """gpt-oss takes gate and up in turn, others one after the other. An adapter for all experts at once has them
    in the base's order already."""
    if len(halves) == 1 or activation != "SWIGLUOAI":
        return torch.cat(halves)
    return torch.stack(halves, dim=1).flatten()


def activated(both: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "SILU":
        gate, up = both.chunk(2)
        return silu(gate) * up
    assert activation == "SWIGLUOAI", activation
    gate, up = both[::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)
