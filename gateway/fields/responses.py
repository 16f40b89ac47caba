"""The fields of /v1/responses, whose requests are translated onto chat.

The checks of values that are sent also bring them into the form of a chat. What an engine's chat bounds, such
as schemas, is checked afterwards by its own table, `tables.CHAT`.
"""

from __future__ import annotations

from typing import Any

from gateway.fields.checks import an_object, integer, one_of, switch, text, texts, that
from gateway.fields.response_tools import tool_choice, tools
from gateway.fields.rule import Rule, Table, bounded, dropped, passed, refused
from gateway.fields.sampling import SAMPLING
from gateway.fields.tables import CHAT

MUST = "be a string or a non-empty list of items"
MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
_HINT = "a hint for OpenAI's service, without effect here"
_ECHOED = "only repeated in the answer"
_STATELESS = "Florin stores no answers; send the conversation's items again as `input`"
_ANY = text()


def _is_metadata(value: Any) -> bool:
    return (
        type(value) is dict
        and len(value) <= MAX_METADATA
        and all(len(k) <= 64 and type(v) is str and len(v) <= 512 for k, v in value.items())
    )


def _is_object(value: Any) -> bool:
    return type(value) is dict


_OBJECT = that(_is_object, "be an object")

# -- what one request has

REASONING: Table = {
    "effort": bounded(text(32), "sent as `reasoning_effort`"),
    "summary": dropped("reasoning is not summarized; the answer has all of it", text(32)),
    "generate_summary": dropped("an older name of `summary`", text(32)),
    "context": dropped("which earlier reasoning is rendered depends on the model's template", text(32)),
    "mode": refused("models on vLLM have one mode", "standard"),
}
FORMAT: Table = {
    "type": bounded(one_of("text", "json_object", "json_schema"), "sent as `response_format`"),
    "name": passed(text(256), "the schema's name"),
    "description": passed(_ANY, "the schema's purpose"),
    "schema": bounded(_OBJECT, "a JSON schema, with the bounds of `response_format`"),
    "strict": passed(switch, "vLLM is always strict"),
}
TEXT: Table = {
    "format": bounded(an_object(FORMAT), "sent as `response_format`"),
    "verbosity": dropped("models on vLLM do not have it", text(32)),
}
STREAM_OPTIONS: Table = {"include_obfuscation": dropped("nothing is added to obfuscate lengths", switch)}

RESPONSES: dict[str, Rule] = {
    "model": SAMPLING["model"],
    "input": bounded(
        that(lambda v: type(v) is str or (type(v) is list and bool(v)), MUST), "sent as `messages`: see below"
    ),
    "instructions": passed(_ANY, "sent as the first system message"),
    "stream": CHAT["stream"],
    "temperature": SAMPLING["temperature"],
    "top_p": SAMPLING["top_p"],
    "max_output_tokens": bounded(integer(1), "sent as `max_completion_tokens`"),
    "top_logprobs": CHAT["top_logprobs"],
    "tools": bounded(tools, "functions, custom tools, and namespaces of them: see below"),
    "tool_choice": bounded(tool_choice, "`none`, `auto`, `required`, a tool, or `allowed_tools`"),
    "parallel_tool_calls": CHAT["parallel_tool_calls"],
    "text": bounded(an_object(TEXT), "the answer's format"),
    "reasoning": bounded(an_object(REASONING), "depends on the model"),
    "include": bounded(texts(16, 64), f"`{LOGPROBS}` is obeyed; the others name what no answer here has"),
    "store": dropped("Florin stores no answers; `store` of the answer is false", switch),
    "previous_response_id": refused(_STATELESS),
    "conversation": refused(_STATELESS),
    "background": refused("Florin stores no answers that could be fetched later", False),
    "prompt": refused("Florin stores no prompt templates; send `instructions` and `input`"),
    "context_management": refused("Florin does not shorten conversations", []),
    "moderation": refused("Florin does not moderate"),
    "truncation": dropped(
        "input is never shortened: too much of it is refused, as with `disabled`", one_of("auto", "disabled")
    ),
    "metadata": dropped(
        "repeated in the answer; its `tag` is used in reports by tag",
        that(_is_metadata, f"be an object of at most {MAX_METADATA} strings of at most 512 characters"),
    ),
    "user": SAMPLING["user"],
    "safety_identifier": SAMPLING["safety_identifier"],
    "service_tier": SAMPLING["service_tier"],
    "prompt_cache_key": dropped(f"{_HINT}; {_ECHOED}", text(1024)),
    "client_metadata": dropped("what Codex says about its session"),
    "prompt_cache_retention": dropped(_HINT),
    "prompt_cache_options": dropped(_HINT),
    "access_programs": dropped(_HINT),
    "image": dropped("vLLM has only one level of detail"),
    "max_tool_calls": dropped(
        f"it bounds the tools that OpenAI runs, which are refused; {_ECHOED}", integer(0)
    ),
    "stream_options": dropped("it has nothing that Florin could obey", an_object(STREAM_OPTIONS)),
    # as on vLLM's own route
    **{
        name: CHAT[name]
        for name in (
            "top_k", "min_p", "seed", "stop", "stop_token_ids", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "logit_bias", "ignore_eos", "min_tokens", "include_stop_str_in_output",
            "skip_special_tokens", "structured_outputs", "include_reasoning", "chat_template_kwargs",
            "request_id", "session_id", "priority", "cache_salt", "vllm_xargs", "kv_transfer_params",
            "ec_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs",
            "watermarking",
        )
    },
    "enable_response_messages": refused("answers have no tokens and no rendered prompts", False),
    "previous_input_messages": refused(_STATELESS, []),
}  # fmt: skip
"""The fields of OpenAI's request, and vLLM's own."""
COPIED = tuple(name for name, rule in RESPONSES.items() if CHAT.get(name) is rule and rule.sends)
"""Fields with the same name and meaning in a chat, whose row they have."""
