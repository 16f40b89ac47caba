"""Anthropic's Messages API as an endpoint of the data plane."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.dataplane.request import CHAT, Endpoint
from gateway.dialects.engine_routes import TOKENIZE
from gateway.dialects.messages.errors import DIALECT
from gateway.dialects.messages.request import NAMES, translate, translate_count
from gateway.fields.anthropic_messages import MUST

MESSAGES: Final = Endpoint(
    "/v1/messages",
    "messages",
    MUST,
    CHAT.fields,
    engine_path=CHAT.path,
    chat=True,
    translate=translate,
    names=NAMES,
    dialect=DIALECT,
)
COUNT_TOKENS: Final = replace(
    TOKENIZE,
    path="/v1/messages/count_tokens",
    required="messages",
    required_must=MUST,
    translate=translate_count,
    names=NAMES,
    dialect=DIALECT,
)
