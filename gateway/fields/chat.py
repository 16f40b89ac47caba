"""The fields of /v1/chat/completions."""

from __future__ import annotations

from gateway.fields.checks import documents, integer, switch, text
from gateway.fields.grammars import TOOLS, tool_choice
from gateway.fields.messages import messages
from gateway.fields.rule import Rule, bounded, dropped, passed, refused
from gateway.fields.sampling import MAX_LOGPROBS, SAMPLING, SCORED
from gateway.fields.template import template_kwargs

_MEDIA = "it changes how much memory and time a picture or a film takes in the engine"
_LEGACY = "vLLM ignores it, and no function would be called: use `tools` and `tool_choice`"

CHAT: dict[str, Rule] = {
    **SAMPLING,
    "messages": bounded(messages, "see below"),
    "max_tokens": bounded(integer(1), "a count of tokens"),
    "max_completion_tokens": bounded(integer(1), "a count of tokens"),
    "logprobs": passed(switch, "form of the answer"),
    "top_logprobs": bounded(integer(0, MAX_LOGPROBS), "sorted and sent for each token"),
    "tools": bounded(TOOLS, "printed by the template, and compiled into a grammar"),
    "tool_choice": bounded(tool_choice, "`none`, `auto`, `required`, or one function"),
    "parallel_tool_calls": passed(switch, "form of the answer"),
    "reasoning_effort": bounded(text(32), "the model's word for it; vLLM refuses what it does not know"),
    "include_reasoning": passed(switch, "form of the answer"),
    "add_generation_prompt": passed(switch, "form of the prompt"),
    "continue_final_message": passed(switch, "form of the prompt"),
    "documents": bounded(documents(1024), "texts that the template may print"),
    "chat_template_kwargs": bounded(template_kwargs, "names and small values for the model's template"),
    "return_prompt_text": passed(switch, "form of the answer"),
    "echo": refused(SCORED, False),
    "chat_template": refused("it is a program, and the engine would run it"),
    "media_io_kwargs": refused(_MEDIA, {}),
    "mm_processor_kwargs": refused(_MEDIA, {}),
    # OpenAI's own
    "verbosity": dropped("no model here knows it"),
    "prediction": dropped("it makes OpenAI's answers faster, and changes none"),
    "modalities": refused("answers are text", ["text"], []),
    "audio": refused("answers are text"),
    "web_search_options": refused("nothing is searched"),
    "moderation": refused("nothing is moderated"),
    "functions": refused(_LEGACY, []),
    "function_call": refused(_LEGACY, "none"),
}
