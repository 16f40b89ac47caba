"""A vLLM plugin: `--load-format dummy` draws weights that compute like a model's.

vLLM's own are between -0.001 and 0.001, norms included: layers then add nothing to the residual stream that
bfloat16 can hold, and neither do adapters.
"""

from __future__ import annotations

import math
from typing import Any


def register() -> None:
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader  # noqa: PLC0415 - only in an engine

    DummyModelLoader.load_weights = load_weights


def load_weights(_loader: Any, model: Any, _config: Any) -> None:
    import torch  # noqa: PLC0415 - as above

    with torch.no_grad():
        for number, (name, weight) in enumerate(model.named_parameters()):
            if weight.dim() == 1:
                weight.fill_(1.0)
                continue
            generator = torch.Generator(device=weight.device)
            generator.manual_seed(number)
            # A trained head is certain of some tokens: logits then reach 16 to 32.
            gain = 5.0 if "lm_head" in name else 1.25
            weight.normal_(0.0, gain / math.sqrt(weight.shape[-1]), generator=generator)
