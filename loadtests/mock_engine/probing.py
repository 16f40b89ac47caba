"""The mock engine's answers to fingerprint probes, deterministic in the seed. Pure.

The seed represents the weights: the base model's root, or an adapter's name and the digest of its files.
"""

from __future__ import annotations

import random
from typing import Any

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.faults import Faults
from loadtests.mock_engine.state import State

WORDS = (" a", " the", " one", " my", " your", " no", " any", " some")


def is_probe(body: Any) -> bool:
    """Whether it is a probe: only probes have several prompts and request logprobs by token id."""
    return isinstance(body, dict) and bool(body.get("return_tokens_as_token_ids"))


def probed(fields: dict[str, Any], state: State, faults: Faults, *, distinct: str) -> tuple[int, bytes]:
    """Status and body of the answer. `distinct` differs from engine to engine."""
    refusal = refused(fields["model"], state, faults)
    return refusal or (200, _fingerprint(fields, weights(fields["model"], state, faults, distinct)))


def refused(model: str, state: State, faults: Faults) -> tuple[int, bytes] | None:
    """Status and body of a refused probe."""
    if model == state.spec.base:
        return None
    if model not in state.adapters:
        return answers.no_such_model(model, state.spec.base)
    if faults.probe_status:
        status = faults.probe_status
        return status, answers.error("The mock engine was told to fail.", "Error", status)
    return None


def weights(model: str, state: State, faults: Faults, distinct: str) -> str:
    """What stands for the weights with which a probe of the model is answered."""
    spec = state.spec
    adapter = model != spec.base
    faulty = faults.probe_as and (not faults.probe_only or faults.probe_only == model)
    seed = f"{model}/{state.contents[model]}" if adapter else spec.root
    if faulty and adapter and faults.probe_as == "base":
        seed = spec.root
    elif faulty and (adapter or faults.probe_as == "all_other"):
        seed += f"/{distinct}"
    return seed


def _fingerprint(body: dict[str, Any], seed: str) -> bytes:
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
