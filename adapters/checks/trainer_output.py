"""What trainers write that is not PEFT's own format, and how to make a servable adapter of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from adapters.checks.finding_codes import CONVERT

_APART = (
    "This is the whole model, not the adapter. Copy adapter_config.json and adapter_model.safetensors to a "
    "directory of their own."
)
_UNPICKLE = (
    'If you trust it, rewrite it in its directory: python -c "import torch; from safetensors.torch import '
    "save_file; w = torch.load('adapter_model.bin', map_location='cpu', weights_only=True); "
    "save_file({k: v.contiguous() for k, v in w.items()}, 'adapter_model.safetensors')\". Then delete it."
)
_TORCHTUNE = (
    "Save it with torchtune 0.5 or later and `safe_serialization: True`; each epoch_N directory then also "
    "has the adapter in PEFT's format."
)
_TORCHTUNE_ONLY = (
    "torchtune cannot write adapters of this model in PEFT's format. Serve the merged model as a base model."
)
_MLX = "MLX's format is not PEFT's: it transposes the matrices. Export the adapter in PEFT's format."
_SHARDED = "Load it with PEFT, and save it in one file: `save_pretrained(…, max_shard_size='100GB')`."
_FSDP = (
    "FSDP saved shards only. Train with `fsdp_state_dict_type: FULL_STATE_DICT`, or merge them with "
    "`accelerate merge-weights`, and save the adapter with PEFT."
)
_DEEPSPEED = (
    "DeepSpeed saved shards only. Train with `stage3_gather_16bit_weights_on_model_save: true`, or merge "
    "them with zero_to_fp32.py, and save the adapter with PEFT."
)

_FILES = {
    r"adapter_model\.bin": _UNPICKLE,
    r"adapter_\d+\.pt": _TORCHTUNE,
    r"(\d+_)?adapters\.safetensors": _MLX,
    r"value_head\.(safetensors|bin)": "Engines have no place for a reward model's value head. Leave it out.",
    r"adapter_model-\d+-of-\d+\.(safetensors|bin)": _SHARDED,
    r"(ft-|pytorch_|hf_)?model([-_.]\d+.*)?\.(safetensors|bin|pt)": _APART,
}
"""Name of a file, in lower case → its remedy."""

_INSTEAD = {
    r"adapter_model\.pt": _TORCHTUNE_ONLY,
    r"pytorch_model_fsdp_\d+": _FSDP,
    r"global_step\d+": _DEEPSPEED,
}
"""Name of what a run may have saved in place of the adapter → the remedy."""

_CHECKPOINT = re.compile(r"(checkpoint-|epoch_)([0-9]{1,9})", re.ASCII)
"""Directories in a run's output directory that hold an adapter each."""

_NAMED = 8

_TENSORS = {
    r"\.lora_magnitude_vector(\.|$)": CONVERT,  # DoRA
    r"(^|\.)modules_to_save\.": CONVERT,
    r"\.(embed_tokens|lm_head)\.weight$": CONVERT,
    r"\.(token_adapter|trainable_tokens_delta)(\.|$)": CONVERT,
    r"\.lora_B(\.[A-Za-z0-9_]+)?\.bias$": "Train it without biases (`lora_bias: false`).",
    # saved without PEFT: the adapter's name, and the wrappers of training
    r"\.lora_(A|B|embedding_A|embedding_B)\.(?!weight$)[A-Za-z0-9_]+(\.weight)?$": CONVERT,
    r"(^|\.)(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.": CONVERT,
    r"^(module|base_model\.model\.base_model\.model)\.": CONVERT,
    r"\.lora_a(\.weight)?$|\.lora_b(\.weight)?$": (
        "torchtune and MLX write such names. Use torchtune's adapter_model.safetensors, which has PEFT's."
    ),
    r"\.lora_(down|up)\.weight$": "Text engines cannot serve the LoRA of an image model.",
}
"""Part of a tensor's name → its remedy."""


def file_remedy(name: str) -> str:
    """What to do about a file of this name; empty if its writer is unknown."""
    return next(
        (remedy for known, remedy in _FILES.items() if re.fullmatch(known, name.lower(), re.ASCII)), ""
    )


def missing_remedy(beside: Iterable[str], adapters: Collection[str] = ()) -> str:
    """What to do if the adapter is missing from a directory that has these names in it; empty if nothing is
    known about them. `adapters`: folders in it that hold one each."""
    names = sorted(beside)
    for name in names:
        if remedy := file_remedy(name):
            return remedy
    for known, remedy in _INSTEAD.items():
        if any(re.fullmatch(known, name, re.ASCII) for name in names):
            return remedy
    numbered = [(int(match[2]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    if numbered:
        return f"Use the directory of a checkpoint, such as {max(numbered)[1]}."
    return f"Use one of the folders that hold an adapter: {_named(adapters)}." if adapters else ""


def _named(folders: Collection[str]) -> str:
    return ascii(sorted(folders)[:_NAMED])[1:-1] + (" and others" if len(folders) > _NAMED else "")


def tensor_remedy(name: str) -> str:
    """What to do about a tensor of this name; empty if the name is PEFT's, or its writer is unknown."""
    return next((remedy for known, remedy in _TENSORS.items() if re.search(known, name, re.ASCII)), "")
