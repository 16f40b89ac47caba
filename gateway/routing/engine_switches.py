"""What vLLM says if it was started without a flag that a request needs, and what to tell the client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Switch:
    beginning: re.Pattern[str]
    """How the engine's message begins. Clients cannot produce such a message."""
    flags: str
    param: str
    message: str


SWITCHES: Final = (
    Switch(
        re.compile(
            '(?:"auto" tool choice|tool_choice=.{1,200}?) requires '
            "--(?:enable-auto-tool-choice|tool-call-parser) "
        ),
        "--enable-auto-tool-choice and --tool-call-parser",
        "tools",
        "Tool calling is not switched on in this deployment's engine for the model. Leave `tools` out, or "
        "ask the operator to switch it on.",
    ),
    Switch(
        re.compile("thinking_token_budget is set but reasoning_config is not configured"),
        "--reasoning-parser",
        "thinking_token_budget",
        "This deployment's engine does not tell the model's thoughts from its answer. Leave "
        "`thinking_token_budget` out, or ask the operator to switch a reasoning parser on.",
    ),
    Switch(
        re.compile(r"As of transformers v[\d.]+, default chat template is no longer allowed"),
        "--chat-template",
        "messages",
        "The model has no chat template, so it answers no chats: call /v1/completions, or ask the operator "
        "to give its engine a template.",
    ),
    Switch(
        re.compile("Chat template is passed with request, but --trust-request-chat-template is not set"),
        "--trust-request-chat-template",
        "chat_template",
        "This deployment's engine takes no chat template from requests. Leave `chat_template` out, or ask "
        "the operator to allow it.",
    ),
)
