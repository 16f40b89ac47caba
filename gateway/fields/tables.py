"""All tables, by where in a request their fields are: what the docs and the comparison with vLLM look at."""

from __future__ import annotations

from gateway.fields.chat import CHAT
from gateway.fields.completions import COMPLETIONS
from gateway.fields.grammars import (
    CHOSEN,
    CHOSEN_FUNCTION,
    FUNCTION,
    JSON_SCHEMA,
    RESPONSE_FORMAT,
    STRUCTURED_OUTPUTS,
    TOOL,
)
from gateway.fields.messages import DROPPED_OF_PARTS, MESSAGE, PARTS
from gateway.fields.rule import Table
from gateway.fields.sampling import REPETITION_DETECTION, STREAM_OPTIONS

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
    "messages": MESSAGE,
    "parts": {**DROPPED_OF_PARTS, **dict(PARTS.values())},
    "part_types": {kind: rule for kind, (_, rule) in PARTS.items()},
}


def without_rule(fields: dict[str, list[str]]) -> list[str]:
    """Which of a vLLM's fields no table knows: `where: name`."""
    return [
        f"{where}: {name}" for where, names in fields.items() for name in names if name not in TABLES[where]
    ]
