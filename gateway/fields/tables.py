"""The fields of /v1/chat/completions and /v1/completions, and all tables by their place in a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.fields.checks import That, documents, integer, integrals, switch, text
from gateway.fields.grammars import (
    ALLOWED,
    CHOSEN,
    CHOSEN_FUNCTION,
    FUNCTION,
    JSON_SCHEMA,
    OPTIONAL,
    RESPONSE_FORMAT,
    STRUCTURED_OUTPUTS,
    TOOL,
    TOOLS,
    tool_choice,
)
from gateway.fields.messages import DROPPED_OF_PARTS, MESSAGE, PARTS, messages
from gateway.fields.rule import Rule, Table, bounded, dropped, passed, refused
from gateway.fields.sampling import MAX_LOGPROBS, REPETITION_DETECTION, SAMPLING, SCORED, STREAM_OPTIONS
from gateway.fields.template import chat_template, template_kwargs

PROMPT_MUST = "be a string, a list of strings, or a list (of lists) of token ids"

_MEDIA = "it changes how much memory and time the engine spends on images and videos"
_LEGACY = "vLLM ignores it and would not call a function; use `tools` and `tool_choice`"

CHAT: dict[str, Rule] = {
    **SAMPLING,
    "messages": bounded(messages, "see below"),
    "max_tokens": bounded(integer(1), "number of tokens"),
    "max_completion_tokens": bounded(integer(1), "number of tokens"),
    "logprobs": passed(switch, "format of the answer"),
    "top_logprobs": bounded(integer(0, MAX_LOGPROBS), "sorted and sent for each token"),
    "tools": bounded(TOOLS, "rendered by the template and compiled into a grammar"),
    "tool_choice": bounded(
        tool_choice,
        "`none`, `auto`, `required`, a function, or `allowed_tools`, of which the engine gets only these",
    ),
    "parallel_tool_calls": passed(switch, "format of the answer"),
    "reasoning_effort": bounded(text(32), "depends on the model; vLLM refuses unknown values"),
    "include_reasoning": passed(switch, "format of the answer; Florin removes it from streams itself"),
    "add_generation_prompt": passed(switch, "format of the prompt"),
    "continue_final_message": passed(switch, "format of the prompt"),
    "documents": bounded(documents(1024), "texts that the template may render"),
    "chat_template_kwargs": bounded(template_kwargs, "names and small values for the model's template"),
    "return_prompt_text": passed(switch, "format of the answer"),
    "echo": passed(switch, SCORED),
    "chat_template": bounded(chat_template, "a program that the engine runs: only if the operator allows it"),
    "media_io_kwargs": refused(_MEDIA, {}),
    "mm_processor_kwargs": refused(_MEDIA, {}),
    # fields of OpenAI only
    "verbosity": dropped("models on vLLM do not have it"),
    "prediction": dropped("it speeds up OpenAI's answers without changing them"),
    "modalities": refused("answers are text only", ["text"], []),
    "audio": refused("answers are text only"),
    "web_search_options": refused("Florin does not search the web"),
    "moderation": refused("Florin does not moderate"),
    "functions": refused(_LEGACY, []),
    "function_call": refused(_LEGACY, "none"),
}


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
        That(_is_prompt, PROMPT_MUST, integrals),
        "at most 1,024 answers in total, `n` for each prompt",
    ),
    "max_tokens": bounded(integer(0), "number of tokens"),
    "logprobs": bounded(integer(0, MAX_LOGPROBS), "sorted and sent for each token"),
    "echo": passed(switch, f"format of the answer; with `logprobs`, it {SCORED}"),
    "suffix": passed(text(), "for fill-in-the-middle models; vLLM refuses it for others"),
    "prompt_embeds": refused("the engine would load a tensor of the client's; send the text", []),
}

TABLES: dict[str, Table] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "stream_options": STREAM_OPTIONS,
    "repetition_detection": REPETITION_DETECTION,
    "response_format": RESPONSE_FORMAT,
    "response_format.json_schema": JSON_SCHEMA,
    "structured_outputs": STRUCTURED_OUTPUTS,
    "tools": TOOL,
    "tools.function": FUNCTION,
    "tool_choice": CHOSEN,
    "tool_choice.function": CHOSEN_FUNCTION,
    "tool_choice.allowed_tools": ALLOWED,
    "messages": MESSAGE,
    "parts": {**DROPPED_OF_PARTS, **dict(PARTS.values())},
    "part_types": {kind: rule for kind, (_, rule) in PARTS.items()},
}


def check_passed(names: Iterable[str]) -> None:
    """Raises ValueError if an operator cannot have one of these fields passed on."""
    known = CHAT.keys() | COMPLETIONS.keys()
    for name in names:
        if name in known or ("." in name and name not in OPTIONAL):
            msg = f"cannot change how {name!r} is handled: allowed are fields unknown to Florin, and "
            raise ValueError(msg + ", ".join(OPTIONAL))
