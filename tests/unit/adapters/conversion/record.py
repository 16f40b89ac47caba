"""Records what PEFT makes of DoRA: `python record.py OUT`, in the engines' environment. Writes a base model of a
linear layer, an embedding and a Conv1D layer; DoRA adapters of it; and the weights that PEFT merges them into.
PEFT 0.21.2 wrote what is kept in recorded/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

out = Path(sys.argv[1])


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(20, 6)
        self.up_proj = nn.Linear(6, 10, bias=False)
        self.down_proj = nn.Linear(10, 6, bias=False)
        self.c_attn = Conv1D(9, 6)

    def forward(self, tokens):
        return self.c_attn(self.down_proj(self.up_proj(self.embed_tokens(tokens))))


def record(name: str, **config) -> None:
    torch.manual_seed(1)
    model = Tiny()
    base = {key: value.clone() for key, value in model.state_dict().items()}
    (out / "base").mkdir(parents=True, exist_ok=True)
    save_file(base, out / "base" / "model.safetensors")
    (out / "base" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    peft = get_peft_model(model, LoraConfig(r=2, lora_alpha=6, use_dora=True, **config))
    with torch.no_grad():
        for key, value in peft.named_parameters():
            if "lora_" in key:
                value.add_(0.3 * torch.randn_like(value))
    peft.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)
    merged = {key: value.contiguous() for key, value in peft.merge_and_unload().state_dict().items()}
    save_file(merged, out / f"{name}-merged.safetensors")


record("dora", target_modules=["up_proj", "down_proj", "embed_tokens"], rank_pattern={"down_proj": 3})
record("rslora", target_modules=["up_proj"], use_rslora=True)
record("conv1d", target_modules=["c_attn"], fan_in_fan_out=True)
