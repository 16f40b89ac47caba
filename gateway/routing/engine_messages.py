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

LONGEST_MESSAGE: Final = 2000
"""Maximum characters of an engine's error message that are looked at."""
OTHERWISE: Final = "The engine rejected the request."

_REPORTED = re.compile(
    r"""'loc':\ (?:'(?P<loc>[^']*)'|\((?P<parts>[^)]*)\)),?\ .*?
    'msg':\ (?P<quote>['"])(?P<msg>.*?)(?P=quote)(?:,\ '|\})""",
    re.DOTALL | re.VERBOSE,
)
"""The first of pydantic's errors, as vLLM reports them: `{'type': …, 'loc': …, 'msg': …, 'input': …}`."""
_PRINTED = re.compile(
    r"\d+ validation errors? for [^\n]*\n(?P<loc>\S[^\n]*)\n\s+(?P<msg>[^\n]*?)(?: \[type=|\n|$)"
)
"""The first of pydantic's errors, as pydantic prints them."""
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
_FIELD = re.compile(r"[A-Za-z_][\w.\[\]]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to tell a client about a request that an engine has refused."""

    message: str
    param: str | None
    code: str = "request_refused"


def refusal(error: dict[str, Any]) -> Refusal:
    """For an engine's error object."""
    text = error.get("message")
    text = text[:LONGEST_MESSAGE] if type(text) is str else ""
    param = error.get("param")
    field = _field(param) if type(param) is str else None
    return _context(text, field) or _validation(text, field) or Refusal(_plain(text, field), field)


def _context(text: str, param: str | None) -> Refusal | None:
    """For a request that exceeds the model's context."""
    above = _ABOVE.search(text)
    if above is not None:
        name, wanted, most = above.groups()
        message = f"`{name}` is {wanted}, but this model's maximum context length is {most} tokens."
        return Refusal(message, name, "context_length_exceeded")
    limit = _LIMIT.search(text)
    if limit is None:
        return None
    asked = []
    if found := _PROMPT.search(text):
        asked.append(
            f"the prompt has {found[1] or found[3]} {found[2] or 'tokens'}".replace("input tokens", "tokens")
        )
    if found := _OUTPUT.search(text):
        asked.append(f"{found[1] or found[2]} tokens were requested for the answer")
    message = f"This model's maximum context length is {limit[1]} tokens"
    message += f", but {' and '.join(asked)}." if asked else "; the request exceeds it."
    return Refusal(message, None if param in _ENGINES_OWN else param, "context_length_exceeded")


_ENGINES_OWN = {"input_tokens", "input_text"}
"""Names for the prompt that are no fields of requests."""


def _validation(text: str, param: str | None) -> Refusal | None:
    """For what pydantic has found."""
    found = _REPORTED.search(text) or _PRINTED.search(text)
    if found is None:
        return None
    groups = found.groupdict()
    path = groups.get("loc") or ".".join(re.findall(r"\w+", groups.get("parts") or ""))
    param = _field(path) or param
    message = _plain(re.sub(r"\\(.)", lambda m: " " if m[1] == "n" else m[1], found["msg"]), param)
    named = param is None or f"`{param}`" in message
    return Refusal(message if named else f"`{param}`: {message}", param)


def _plain(text: str, param: str | None) -> str:
    """The sentences that are for clients."""
    text = _REPR.sub("", _PREFIX.sub("", _SUFFIX.sub("", text.strip())))
    kept = [part for part in _SENTENCE.split(text) if part.strip() and not _INTERNAL.search(part)]
    said = " ".join(" ".join(kept).split()).strip(" ,:;")
    if not said:
        return f"The engine rejected `{param}`." if param else OTHERWISE
    return said if said[-1] in ".!?" else f"{said}."


def _field(path: str) -> str | None:
    path = path.removeprefix("body.")
    return path if path != "body" and _FIELD.fullmatch(path) else None
