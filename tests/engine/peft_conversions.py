"""Makes adapters that need conversion, with PEFT, on a base model: `python peft_conversions.py BASE OUT PROMPT`, in the
engines' environment. Each is given random weights, as if it had been trained:

`dora`, `lm_head` (LoRA and lm_head in full: of rank 3, so that it can be had exactly), `tokens`, `patterns` (ranks and
alphas by expressions with `.*`), `rank64`. Prints one line: JSON of what PEFT makes of each, as peft_answers.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft_answers import answer
from transformers import AutoModelForCausalLM

base, out, prompt = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def made(name: str, **config) -> None:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = {"r": 4, "lora_alpha": 8, "target_modules": LINEAR, "task_type": "CAUSAL_LM", **config}
    peft = get_peft_model(model, LoraConfig(**config))
    with torch.no_grad():
        for key, value in peft.named_parameters():
            if "lora_magnitude" in key:
                value.mul_(1 + 0.01 * torch.randn_like(value))
            elif "modules_to_save" in key:
                value.add_(0.3 * torch.randn(len(value), 3) @ torch.randn(3, value.shape[1]) / 3)
            elif "trainable_tokens_delta" in key:
                value.add_(0.5 * torch.randn_like(value))
            elif "lora_" in key:
                value.add_(0.08 * torch.randn_like(value))
    peft.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)


made("dora", use_dora=True, rank_pattern={"down_proj": 6}, alpha_pattern={"o_proj": 4}, use_rslora=True)
made("lm_head", modules_to_save=["lm_head"])
made("tokens", trainable_token_indices={"embed_tokens": [3, 50, 70]})
made(
    "patterns",
    rank_pattern={".*self_attn.*": 2, "layers.0.*proj": 6},
    alpha_pattern={"layers.*down_proj": 24},
)
made("rank64", r=64)
sys.stdout.write("\n" + json.dumps({path.name: answer(base, prompt, str(path)) for path in out.iterdir()}))
