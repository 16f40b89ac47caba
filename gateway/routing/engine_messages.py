"""Puts engines' error messages into words for clients.

VLLM's messages carry names of Python classes and modules, reprs of objects (even the client's whole request),
file paths, flags of the server and links to the documentation of its libraries. Clients get what they can act
on: the field, the limit, and what they asked for. Engines' own logs have the rest.

tests/unit/gateway/routing/test_engine_messages.py has messages as vLLM sent them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.routing.engine_switches import SWITCHES
from gateway.routing.engine_validation import field_error, field_name

LONGEST_MESSAGE: Final = 2000
"""Maximum characters of an engine's error message that are looked at."""
LONGEST_REASON: Final = 200
OTHERWISE: Final = "The engine rejected the request."

_LIMIT = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)")
_PROMPT = re.compile(
    r"(?:prompt contains|request has) (?:at least )?(\d+) (input tokens|characters)|prompt \(length (\d+)\)"
)
_OUTPUT = re.compile(r"requested (\d+) output tokens|too large: (\d+)")
_ABOVE = re.compile(r"(max_\w+)=(\d+) cannot be greater than [\w=]*?=? ?=? ?(\d+)")
_PREFIX = re.compile(r"^(?:Value error, |Assertion failed, |(?:\w+\.)*[A-Z]\w*(?:Error|Exception): )+")
_SUFFIX = re.compile(r" \((?:parameter|value)=.*\)$", re.DOTALL)
_REPR = re.compile(r"[:,]? *(?:\bgot )?(?:<\w|[\[{]+['\"{\[]|\b[A-Z]\w+\(\w*=).*", re.DOTALL)
"""From the repr of a Python object to the end, which may contain anything."""
_QUOTING = re.compile(r"""['"`\[{(<:=,\d\n]""")
"""With which a quotation begins, and what follows a label."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_INTERNAL = re.compile(
    r"""https?:// | (?<![\w.])/[\w.-]+/[\w.-] | \b0x[0-9a-f]{4} | (?<!\w)--[a-z]
    | (?i:\b(?:vllm|pydantic|torch|transformers|xgrammar|outlines|llguidance|guidance|lark|jinja2?|msgspec|
      fastapi|starlette|huggingface|lora|python|traceback))
    | \b[A-Z]+[a-z]\w*(?:Error|Exception|Warning|Config|Params|Request|Response|Parser|Processor|Model)\b
    | \b\w+\.\w+\.\w+ | \b[a-z]\w*\(\) | __\w""",
    re.VERBOSE,
)
"""What only the engine's operator understands."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to tell a client about a request that an engine has refused, and what its operator."""

    message: str
    param: str | None
    code: str = "request_refused"
    missing: str = ""
    """Flags that the engine would have to be started with; empty: none that is known."""

    @property
    def hides(self) -> bool:
        """Whether the client is not told the engine's reason."""
        return bool(self.missing) or self.message == _unexplained(self.param)


def refusal(error: dict[str, Any]) -> Refusal:
    """For an engine's error object."""
    text = error.get("message")
    text = text[:LONGEST_MESSAGE] if type(text) is str else ""
    param = error.get("param")
    field = field_name(param) if type(param) is str else None
    for switch in SWITCHES:
        if switch.beginning.match(text):
            return Refusal(switch.message, switch.param, "feature_disabled", switch.flags)
    return _context(text, field) or _validation(text, field) or Refusal(_plain(text, field), field)


def reason(error: dict[str, Any]) -> str:
    """The engine's own words, for its operator: up to where it may begin to quote the request."""
    text = error.get("message")
    text = text[:LONGEST_MESSAGE] if type(text) is str else ""
    return _QUOTING.split(_PREFIX.sub("", text.strip()), maxsplit=1)[0].strip()[:LONGEST_REASON]


def _context(text: str, param: str | None) -> Refusal | None:
    """For a request that exceeds the model's context."""
    above = _ABOVE.search(text)
    if above is not None:
        name, requested, most = above.groups()
        message = f"`{name}` is {requested}, but this model's maximum context length is {most} tokens."
        return Refusal(message, name, "context_length_exceeded")
    limit = _LIMIT.search(text)
    if limit is None:
        return None
    demands = []
    if match := _PROMPT.search(text):
        demands.append(
            f"the prompt has {match[1] or match[3]} {match[2] or 'tokens'}".replace("input tokens", "tokens")
        )
    if match := _OUTPUT.search(text):
        demands.append(f"{match[1] or match[2]} tokens were requested for the answer")
    message = f"This model's maximum context length is {limit[1]} tokens"
    message += f", but {' and '.join(demands)}." if demands else "; the request exceeds it."
    return Refusal(message, None if param in _ENGINES_OWN else param, "context_length_exceeded")


_ENGINES_OWN = {"input_tokens", "input_text"}
"""Names for the prompt that are no fields of requests."""


def _validation(text: str, param: str | None) -> Refusal | None:
    """For what pydantic has found."""
    error = field_error(text)
    if error is None:
        return None
    param = field_name(error.path) or param
    message = _plain(re.sub(r"\\(.)", lambda m: " " if m[1] == "n" else m[1], error.message), param)
    named = param is None or f"`{param}`" in message
    return Refusal(message if named else f"`{param}`: {message}", param)


def _plain(text: str, param: str | None) -> str:
    """The sentences that are for clients."""
    text = _REPR.sub("", _PREFIX.sub("", _SUFFIX.sub("", text.strip())))
    kept = [part for part in _SENTENCE.split(text) if part.strip() and not _INTERNAL.search(part)]
    message = " ".join(" ".join(kept).split()).strip(" ,:;")
    if not message:
        return _unexplained(param)
    return message if message[-1] in ".!?" else f"{message}."


def _unexplained(param: str | None) -> str:
    return f"The engine rejected `{param}`." if param else OTHERWISE
