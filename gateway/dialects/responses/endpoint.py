"""The routes."""

from __future__ import annotations

from dataclasses import replace

from gateway.dataplane.request import Endpoint
from gateway.dialects.engine_routes import TOKENIZE
from gateway.dialects.responses.request import translate, translate_count
from gateway.fields.responses import MUST
from gateway.fields.tables import CHAT

RESPONSES = Endpoint(
    "/v1/responses",
    "messages",
    MUST,
    CHAT,
    engine_path="/v1/chat/completions",
    chat=True,
    translate=translate,
    names={
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "logprobs": "top_logprobs",
        "tools[].function": "tools[]",
        "tool_choice.function": "tool_choice",
        "tool_choice.allowed_tools": "tool_choice",
    },
)
INPUT_TOKENS = replace(
    TOKENIZE,
    path="/v1/responses/input_tokens",
    required="messages",
    required_must=MUST,
    translate=translate_count,
    names=RESPONSES.names,
)
