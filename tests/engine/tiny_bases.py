"""Makes a tiny random base model of one of several architectures with LoRA adapters of PEFT's, and says what PEFT
itself makes of them: `python tiny_bases.py DEMO_BASE OUT_DIR NAME`, in the engines' environment.

Writes `manifest.json` last: {"directory", "answers": {adapter's directory, or "": answers}}, directories
relative to OUT_DIR. An answer to a prompt is {"text", "logprobs"} of its greedy continuation, or a vector of
length 1. For a quantized base, PEFT computes in float32 with the weights that the file's numbers stand for.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from quantized import CONFIGS, quantize
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    BertConfig,
    GptOssConfig,
    GraniteConfig,
    Qwen2_5_VLConfig,
    Qwen3MoeConfig,
)

PROMPTS = ("When will my order arrive?", "My card is lost.", "Hello")
"""Also in test_bases.py."""
TOKENS = 12
DEMO = Path(sys.argv[1])
"""The demo's base, whose tokenizer all have; its adapters lie beside it. Quantized bases are made of it: engines
compute with them in 16 bits, and a trained model is surer of its tokens than a random one."""
RANK = 8
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERT = ["gate_proj", "up_proj", "down_proj"]
LINEAR = [*ATTENTION, *EXPERT]


@dataclass(frozen=True)
class Base:
    config: Any
    auto: Any
    adapters: dict[str, dict[str, Any]]
    """Directory → settings of its LoraConfig, or "trained": a directory to take it from."""
    embeds: bool = False
    quantized: str = ""
    """By which method of `quantized`."""


def bases(vocabulary: int) -> dict[str, Base]:
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0,
        "initializer_range": 0.12,
    }  # fmt: skip
    # Heads that do not add up to the hidden size, as in most models with experts.
    mixture = sizes | {"hidden_size": 96, "head_dim": 32, "num_experts_per_tok": 2}
    vision = {
        "depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128,
        "fullatt_block_indexes": [0], "in_channels": 3,
    }  # fmt: skip
    text = sizes | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    }
    plain = {
        "attention": {"target_modules": ATTENTION},
        "linear": {"target_modules": LINEAR, "use_rslora": True},
    }
    return {
        "qwen3-moe": Base(
            Qwen3MoeConfig(**mixture, num_experts=4, moe_intermediate_size=64, norm_topk_prob=True),
            AutoModelForCausalLM,
            {
                "attention": {"target_modules": ATTENTION},
                "some": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
                "experts": {"target_modules": EXPERT},
            },
        ),
        "gpt-oss": Base(
            GptOssConfig(**mixture, num_local_experts=4, sliding_window=16),
            AutoModelForCausalLM,
            {
                "attention": {"target_modules": ATTENTION},
                "some": {"target_modules": ["k_proj", "o_proj"], "rank_pattern": {"k_proj": 4}},
                "experts": {
                    "target_modules": ["q_proj"],
                    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                    "r": 4,
                },
            },
        ),
        "granite": Base(
            GraniteConfig(
                **sizes, embedding_multiplier=6.0, residual_multiplier=0.5, attention_multiplier=0.1,
                logits_scaling=0.5,
            ),
            AutoModelForCausalLM,
            plain,
        ),
        "qwen2.5-vl": Base(
            Qwen2_5_VLConfig(
                text_config=text, vision_config=vision, tie_word_embeddings=False, image_token_id=440,
                video_token_id=441, vision_start_token_id=442, vision_end_token_id=443,
            ),
            AutoModelForImageTextToText,
            {
                "attention": {"target_modules": ATTENTION},
                "linear": {"target_modules": r".*language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"},
            },
        ),
        "bert": Base(
            BertConfig(**{k: v for k, v in sizes.items() if k != "num_key_value_heads"}),
            AutoModel,
            {
                "attention": {"target_modules": ["query", "key", "value"], "task_type": "FEATURE_EXTRACTION"},
                "linear": {
                    "target_modules": ["query", "key", "value", "intermediate.dense", "output.dense"],
                    "task_type": "FEATURE_EXTRACTION",
                    "use_rslora": True,
                },
            },
            embeds=True,
        ),
        **{
            method: Base(
                None,
                AutoModelForCausalLM,
                {"acme": {"trained": DEMO.parent / "acme"}, "bolt": {"trained": DEMO.parent / "bolt"}},
                quantized=method,
            )
            for method in CONFIGS
        },
    }  # fmt: skip


def make(name: str, base: Base, tokenizer: Any, out: Path) -> dict[str, Any]:
    torch.manual_seed(len(name))
    if base.quantized:
        model = base.auto.from_pretrained(DEMO, dtype=torch.float32).eval()
    else:
        model = base.auto.from_config(base.config).eval()
    head = None if base.quantized else model.get_output_embeddings()
    if head is not None:  # what is not plain text is never the likeliest token
        texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        odd = [
            i for i, text in enumerate(texts) if not (text.isascii() and text.isprintable()) or "|" in text
        ]
        head.weight.data[odd] = 0
    directory = served = out / name / "base"
    if base.quantized:
        directory = out / name / "computed"
        quantize(model, base.quantized, served)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(served)
    say = embed if base.embeds else continued
    answers = {"": [say(model, tokenizer, prompt) for prompt in PROMPTS]}
    for adapter, settings in base.adapters.items():
        if "trained" in settings:
            tuned = PeftModel.from_pretrained(base.auto.from_pretrained(directory), settings["trained"])
            tuned.peft_config["default"].base_model_name_or_path = name
            tuned.save_pretrained(out / name / adapter)
        elif settings["target_modules"] == EXPERT:
            config = lora(name, settings)
            save_experts(base.config, config, out / name / adapter)
        else:
            config = lora(name, settings)
            tuned = get_peft_model(base.auto.from_pretrained(directory), config)
            for parameter, weights in tuned.named_parameters():
                if "lora_B" in parameter:
                    torch.nn.init.normal_(weights, std=0.1)
            config.base_model_name_or_path = name
            tuned.save_pretrained(out / name / adapter)
        again = PeftModel.from_pretrained(base.auto.from_pretrained(directory), out / name / adapter).eval()
        answers[f"{name}/{adapter}"] = [say(again, tokenizer, prompt) for prompt in PROMPTS]
    return {"directory": f"{name}/base", "answers": answers}


def lora(name: str, settings: dict[str, Any]) -> LoraConfig:
    config = LoraConfig(**{"r": RANK, "lora_alpha": 16, "task_type": "CAUSAL_LM"} | settings)
    config.base_model_name_or_path = name
    return config


def save_experts(sizes: Any, config: LoraConfig, directory: Path) -> None:
    """As PEFT with transformers 4 saves it, where each expert has modules of its own. With transformers 5,
    where all experts of a layer are one parameter, PEFT converts such files when it loads them."""
    outer, inner = sizes.hidden_size, sizes.moe_intermediate_size
    shapes = {"gate_proj": (outer, inner), "up_proj": (outer, inner), "down_proj": (inner, outer)}
    tensors = {}
    for layer in range(sizes.num_hidden_layers):
        for expert in range(sizes.num_experts):
            for module, (size_in, size_out) in shapes.items():
                path = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{module}"
                tensors[f"{path}.lora_A.weight"] = torch.randn(config.r, size_in) / 10
                tensors[f"{path}.lora_B.weight"] = torch.randn(size_out, config.r) / 10
    config.save_pretrained(directory)
    save_file(tensors, directory / "adapter_model.safetensors")


@torch.no_grad()
def continued(model: Any, tokenizer: Any, prompt: str) -> dict[str, Any]:
    tokens, logprobs = tokenizer(prompt, return_tensors="pt").input_ids, []
    start = tokens.shape[1]
    for _ in range(TOKENS):
        told = torch.log_softmax(model(input_ids=tokens).logits[0, -1], -1)
        best = told.argmax()
        logprobs.append(told[best].item())
        tokens = torch.cat([tokens, best.view(1, 1)], 1)
    return {"text": tokenizer.decode(tokens[0, start:]), "logprobs": logprobs}


@torch.no_grad()
def embed(model: Any, tokenizer: Any, prompt: str) -> list[float]:
    """The first token's hidden state, as vLLM pools BERT."""
    hidden = model(input_ids=tokenizer(prompt, return_tensors="pt").input_ids).last_hidden_state
    return torch.nn.functional.normalize(hidden[0, 0], dim=0).tolist()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tokenizer, out = AutoTokenizer.from_pretrained(DEMO), Path(sys.argv[2])
    name = sys.argv[3]
    made = make(name, bases(len(tokenizer))[name], tokenizer, out)
    (out / "manifest.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main()
