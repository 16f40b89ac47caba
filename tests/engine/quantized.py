"""Quantizes a model as published ones are, file layouts included: AWQ, GPTQ and compressed-tensors.

Runs in the engines' environment, beside tiny_bases.py. The libraries that calibrate (llm-compressor, GPTQModel,
AutoAWQ) need none of this for their file formats, which are documented; here weights are rounded to nearest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import save_file
from torch import Tensor, nn

GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {
        "bits": 4, "group_size": GROUP, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True,
    },
    "gptq": {
        "bits": 4, "checkpoint_format": "gptq", "damp_percent": 0.1, "desc_act": False, "group_size": GROUP,
        "lm_head": False, "quant_method": "gptq", "static_groups": False, "sym": True, "true_sequential": True,
    },
    "w4a16": {
        "config_groups": {
            "group_0": {
                "input_activations": None, "output_activations": None, "targets": ["Linear"],
                "weights": {
                    "actorder": None, "dynamic": False, "group_size": GROUP, "num_bits": 4, "observer": "minmax",
                    "strategy": "group", "symmetric": True, "type": "int",
                },
            }
        },
        "format": "pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
    },
}  # fmt: skip
"""What the libraries write as `quantization_config`."""

Made = tuple[dict[str, Tensor], Tensor]
"""Tensors by the end of their name, and the weight that they stand for."""


def quantize(model: Any, method: str, directory: Path) -> None:
    """Write the quantized model, and give `model` the weights that an engine will compute with."""
    model.config.save_pretrained(directory)
    tensors: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path != "lm_head":
            packed, weight = _METHODS[method](module.weight.data)
            tensors |= {f"{path}.{name}": tensor.contiguous() for name, tensor in packed.items()}
            module.weight.data = weight
    for name, parameter in model.named_parameters():
        if name.removesuffix(".weight") not in {one.rpartition(".")[0] for one in tensors}:
            parameter.data = parameter.data.bfloat16().float()
            tensors[name] = parameter.data.bfloat16()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    file = directory / "config.json"
    written = json.loads(file.read_text()) | {"dtype": "bfloat16", "quantization_config": CONFIGS[method]}
    file.write_text(json.dumps(written))


def _rounded(scale: Tensor) -> Tensor:
    return scale.bfloat16().float()


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric 4-bit values of a weight (out, in), and scales (out, groups)."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    scale = _rounded(groups.abs().amax(-1) / 7)
    return (groups / scale[..., None]).round().clamp(-8, 7).reshape(weight.shape), scale


def _back(values: Tensor, scale: Tensor) -> Tensor:
    return (values.reshape(*scale.shape, -1) * scale[..., None]).reshape(values.shape[0], -1)


def _w4a16(weight: Tensor) -> Made:
    values, scale = _grouped(weight)
    packed = {
        "weight_packed": pack_to_int32(values.to(torch.int8), 4),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return packed, _back(values, scale)


def _gptq(weight: Tensor) -> Made:
    values, scale = _grouped(weight)
    shifted = (values + 8).to(torch.int64).t()
    packed = {
        "qweight": _pack(shifted.reshape(-1, 8, weight.shape[0]).transpose(1, 2)),
        "qzeros": _pack(torch.full((scale.shape[1], weight.shape[0] // 8, 8), 7)),  # 8, written less one
        "scales": scale.t().bfloat16(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }
    return packed, _back(values, scale)


def _awq(weight: Tensor) -> Made:
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = _rounded((most - least) / 15)
    zero = (-least / scale).round().clamp(0, 15)
    values = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    packed = {
        "qweight": _awq_pack(values.reshape(weight.shape).t()),
        "qzeros": _awq_pack(zero.t()),
        "scales": scale.t().bfloat16(),
    }
    return packed, ((values - zero[..., None]) * scale[..., None]).reshape(weight.shape)


def _awq_pack(values: Tensor) -> Tensor:
    return _pack(values.to(torch.int64).reshape(values.shape[0], -1, 8)[..., _AWQ_ORDER])


def _pack(values: Tensor) -> Tensor:
    """The last dimension's eight numbers of 4 bits as one of 32."""
    total = (values << (4 * torch.arange(8))).sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


_METHODS: dict[str, Callable[[Tensor], Made]] = {
    "awq": _awq,
    "gptq": _gptq,
    "w4a16": _w4a16,
}
