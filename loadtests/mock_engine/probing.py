"""The mock engine's answers to fingerprint probes, deterministic in the seed. Pure.

The seed represents the weights: the base model's root, or an adapter's name and the digest of its files.
"""

from __future__ import annotations

import random
from typing import Any

import orjson

WORDS = (" a", " the", " one", " my", " your", " no", " any", " some")


def is_probe(body: Any) -> bool:
    """Whether it is a probe: only probes have several prompts and request logprobs by token id."""
    return isinstance(body, dict) and bool(body.get("return_tokens_as_token_ids"))


def probed(body: dict[str, Any], seed: str) -> bytes:
    """The answer to a /v1/completions request with several prompts and `logprobs`."""
    source = random.Random(seed)
    prompts, tokens, top = body["prompt"], body["max_tokens"], body["logprobs"]
    choices = [_choice(index, source, tokens, top) for index in range(len(prompts))]
    prompt_tokens = sum(1 + prompt.count(" ") for prompt in prompts)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens * len(prompts),
        "total_tokens": prompt_tokens + tokens * len(prompts),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return orjson.dumps(
        {"object": "text_completion", "model": body["model"], "choices": choices, "usage": usage}
    )


def _choice(index: int, source: random.Random, tokens: int, top: int) -> dict[str, Any]:
    steps = []
    for _ in range(tokens):
        likeliest = sorted((-source.random() * 8 for _ in range(top)), reverse=True)
        ids = source.sample(range(50_000), top)  # distinct, or some logprobs would be missing
        steps.append({f"token_id:{id_}": lp for id_, lp in zip(ids, likeliest, strict=True)})
    text = "".join(source.choices(WORDS, k=tokens))
    return {
        "index": index,
        "text": text,
        "finish_reason": "length",
        "logprobs": {"top_logprobs": steps, "token_logprobs": [max(step.values()) for step in steps]},
    }
