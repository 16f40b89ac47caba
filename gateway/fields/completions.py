"""The fields of /v1/completions."""

from __future__ import annotations

from typing import Any

from gateway.fields.checks import integer, switch, text, that
from gateway.fields.rule import Rule, bounded, passed, refused
from gateway.fields.sampling import MAX_LOGPROBS, SAMPLING

MUST = "be a string, a list of strings, or a list (of lists) of token ids"


def _is_prompt(v: Any) -> bool:
    if type(v) is str:
        return True
    if type(v) is not list or not v:
        return False
    kinds = {type(item) for item in v}
    if kinds == {list}:
        return all(item and all(type(token) is int for token in item) for item in v)
    return kinds in ({str}, {int})


COMPLETIONS: dict[str, Rule] = {
    **SAMPLING,
    "prompt": bounded(
        that(_is_prompt, MUST),
        "at most 1,024 answers in all, `n` for each prompt",
    ),
    "max_tokens": bounded(integer(0), "a count of tokens"),
    "logprobs": bounded(integer(0, MAX_LOGPROBS), "sorted and sent for each token; not with `echo`"),
    "echo": passed(switch, "form of the answer; not with `logprobs`"),
    "suffix": passed(text(), "models that can fill in; vLLM refuses it for others"),
    "prompt_embeds": refused("a tensor that the engine loads: send the text", []),
}
