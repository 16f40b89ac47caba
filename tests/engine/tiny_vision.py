"""Makes a tiny vision-language base (LLaVA: CLIP and Llama) with a LoRA adapter, and says what PEFT makes of
them: `python tiny_vision.py TOKENIZER OUT_DIR`, in the engines' environment.

`support/` thinks, looks and answers as test_vision.py expects, so whatever of an image, a thought or an adapter
gets lost is visible in the text. `red.png` and `blue.png` are what there is to see. `told.json`, written last, has PEFT's figures by adapter ("": the base): `answers`, the
logprobs of each greedy answer's tokens, by colour; `perplexity` of SCORED; and `end_of_thought`, the token.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

SIDE, PATCH = 28, 14
IMAGE_TOKENS = (SIDE // PATCH) ** 2
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}
SAID = [
    ("Which colour is it?", "red", "<think>I look.</think>It is red."),
    ("Which colour is it?", "blue", "<think>I look.</think>It is blue."),
    ("Hello", "", "<think>A greeting.</think>Good day!"),
]
"""Question, colour of its image, answer. Also in test_vision.py."""
SCORED = ("Hello", " there, it is red.")
"""A prompt and its completion. Also in test_vision.py."""
MOST_TOKENS = 16
"""Of an answer, in `told.json`."""


CONFIG = LoraConfig(
    r=8,
    lora_alpha=16,
    task_type="CAUSAL_LM",
    target_modules=r".*language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj",
)


def processor(tokenizer: Any) -> Any:
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )


def model(tokenizer: Any) -> Any:
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.12,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, projection_dim=64, initializer_range=0.12,
    )  # fmt: skip
    return LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=text, vision_config=vision, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            vision_feature_select_strategy="default", vision_feature_layer=-2, image_seq_length=IMAGE_TOKENS,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


def save(base: Any, directory: Path) -> None:
    """With the names of published files, which vLLM knows. transformers 5 leaves out a level of them when it
    loads such files, and does not put it back when it saves a model that it made itself."""
    base.save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors = {
        name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


def asked(prepare: Any, question: str, colour: str, answer: str = "") -> dict[str, Any]:
    """What the model reads, as an engine renders it, and the beginning of its answer."""
    content = f"<image>\n{question}" if colour else question
    prompt = prepare.tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    images = Image.new("RGB", (SIDE, SIDE), COLOURS[colour]) if colour else None
    return dict(prepare(text=prompt + answer, images=images, return_tensors="pt", add_special_tokens=False))


def sample(prepare: Any, question: str, colour: str, answer: str) -> dict[str, Any]:
    """What the model reads, and what it is to say."""
    whole = asked(prepare, question, colour, answer + prepare.tokenizer.eos_token)
    labels = whole["input_ids"].clone()
    labels[:, : asked(prepare, question, colour)["input_ids"].shape[1]] = -100
    return {**whole, "labels": labels}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    out = Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.add_tokens(["<think>", "</think>"])
    prepare = processor(tokenizer)
    base = model(tokenizer).eval()
    base.get_output_embeddings().weight.data[base.config.image_token_index] = 0  # it never says an image
    save(base, out / "base")
    prepare.save_pretrained(out / "base")
    tokenizer.save_pretrained(out / "base")

    tuned = get_peft_model(LlavaForConditionalGeneration.from_pretrained(out / "base"), CONFIG)
    teach(tuned, [sample(prepare, *line) for line in SAID * 130])
    tuned.peft_config["default"].base_model_name_or_path = "llava"
    tuned.save_pretrained(out / "support")
    models = {"": base, "support": tuned}
    for name, colour in COLOURS.items():
        Image.new("RGB", (SIDE, SIDE), colour).save(out / f"{name}.png")
    told = {
        "answers": {name: answers(model, prepare) for name, model in models.items()},
        "perplexity": {name: perplexity(model, tokenizer) for name, model in models.items()},
        "end_of_thought": tokenizer.convert_tokens_to_ids("</think>"),
    }
    (out / "told.json").write_text(json.dumps(told))


def teach(tuned: Any, samples: list[dict[str, Any]]) -> None:
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=5e-3)
    for one in samples:
        loss = tuned(**one).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if loss.item() > 0.05:
        raise SystemExit(f"the adapter has not learned its answers: loss {loss.item():.3f}")
    tuned.eval()


def answers(model: Any, prepare: Any) -> dict[str, list[float]]:
    return {colour: continued(model, asked(prepare, question, colour)) for question, colour, _ in SAID}


@torch.no_grad()
def continued(model: Any, read: dict[str, Any]) -> list[float]:
    """The logprobs of the greedy answer's tokens."""
    tokens, logprobs = read["input_ids"], []
    pixels = {"pixel_values": read["pixel_values"]} if "pixel_values" in read else {}
    end = model.config.text_config.eos_token_id
    while len(logprobs) < MOST_TOKENS:
        told = torch.log_softmax(model(input_ids=tokens, **pixels).logits[0, -1], -1)
        best = told.argmax()
        logprobs.append(told[best].item())
        if best == end:
            break
        tokens = torch.cat([tokens, best.view(1, 1)], 1)
    return logprobs


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any) -> float:
    prompt, whole = (tokenizer(text, return_tensors="pt").input_ids for text in (SCORED[0], "".join(SCORED)))
    told = torch.log_softmax(model(input_ids=whole).logits[0, :-1], -1)
    logprobs = told.gather(1, whole[0, 1:, None])[prompt.shape[1] - 1 :]
    return math.exp(-logprobs.mean().item())


if __name__ == "__main__":
    main()
