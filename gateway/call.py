"""What a request asks for: the body, read once, checked where Florin or the engine would stumble over it.

What was checked is what is sent: the engine gets a serialization of this reading, never the client's bytes,
so that no second reading (duplicate keys, UTF-16) can differ from the one that was authorised. Everything
that Florin does not know passes through; the engine has the last word on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import FlorinError

Body = dict[str, Any]

CONTROLLED = (
    "request_id", "priority", "cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
    "data_parallel_rank",
)  # fmt: skip
"""Fields that the engine obeys and a client must not set: scheduling, other tenants' caches, transfers."""

MAX_CHOICES = 1024
"""Answers to one request: a list of prompts costs few bytes, and the engine has no limit of its own."""
_LARGEST_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Field:
    accepts: Callable[[Any], bool]
    must: str
    """Completes the sentence '`n` must …'."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    required: str
    fields: Mapping[str, Field]


@dataclass(slots=True)
class Call:
    """One parsed request. `body` belongs to this call, and is empty once `payload` has been made of it:
    parsed, a body takes many times its bytes."""

    endpoint: Endpoint
    body: Body
    model: str
    stream: bool
    n: int
    prompts: int
    """How many prompts the body holds; more than one only in completions."""
    include_usage: bool
    """The client asked for the usage chunk at the stream's end."""
    continuous_usage: bool
    """The client asked for running counts on every chunk."""
    estimate: int = 0
    """Of the prompt's tokens, should the engine never say."""

    @property
    def user(self) -> str:
        """Whom the calling application serves with it, in its own words; empty: it does not say."""
        return self.body.get("user") or self.body.get("safety_identifier") or ""

    def payload(self, engine_name: str, cache_salt: str) -> bytes:
        """What the engine is sent. Can be made once."""
        body, self.body = self.body, {}
        for name in CONTROLLED:
            body.pop(name, None)
        body["model"] = engine_name
        body["cache_salt"] = cache_salt
        if self.stream:
            body["stream_options"] = {
                **(body.get("stream_options") or {}),
                "include_usage": True,
                "continuous_usage_stats": True,
            }
        try:
            return orjson.dumps(body)
        except TypeError:
            raise FlorinError("invalid_json", "The body is nested too deeply.") from None


def parse(endpoint: Endpoint, raw: bytes, *, max_n: int) -> Call:
    """The call in `raw`, or FlorinError with the field that is wrong as `param`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FlorinError("invalid_json", f"The body is not valid JSON in UTF-8: {error}.") from None
    if type(body) is not dict:
        raise FlorinError("invalid_json", "The body must be a JSON object.")
    fields = endpoint.fields
    for name, value in body.items():
        field = fields.get(name)
        if field is not None and value is not None and not field.accepts(value):
            raise _wrong(name, field.must)
    if not body.get("model"):
        raise _wrong("model", "be the name of an adapter")
    if body.get(endpoint.required) is None:
        raise _wrong(endpoint.required, endpoint.fields[endpoint.required].must)
    if body.get("echo") and body.get("logprobs") is not None:
        raise _wrong("logprobs", "be left out where `echo` is true")  # see _SCORED
    n = body.get("n") or 1
    if max(n, body.get("best_of") or 1) > max_n:
        raise _wrong("n" if n > max_n else "best_of", f"be at most {max_n}")
    prompts = _prompts(body["prompt"]) if endpoint.required == "prompt" else 1
    if n * prompts > MAX_CHOICES:
        raise _wrong("prompt", f"ask for at most {MAX_CHOICES} answers in all, `n` for each prompt")
    stream = body.get("stream") or False
    options = body.get("stream_options")
    if options is not None and not stream:
        raise _wrong("stream_options", "only be given when `stream` is true")
    options = options or {}
    return Call(
        endpoint=endpoint,
        body=body,
        model=body["model"],
        stream=stream,
        n=n,
        prompts=prompts,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
    )


def _prompts(prompt: Any) -> int:
    return len(prompt) if type(prompt) is list and type(prompt[0]) is not int else 1


def _wrong(name: str, must: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` must {must}.", param=name)


# -- what fields accept (bool is an int to Python, but not to JSON: hence `type(v) is`)


def _integer(low: int, high: int = _LARGEST_INT) -> Field:
    return Field(
        lambda v: type(v) is int and low <= v <= high,
        f"be an integer from {low} to {high}" if high != _LARGEST_INT else f"be an integer of at least {low}",
    )


def _number(low: float, high: float = math.inf) -> Field:
    def accepts(v: Any) -> bool:
        return (type(v) is float or type(v) is int) and low <= v <= high and v != math.inf

    return Field(
        accepts, f"be a number from {low} to {high}" if high < math.inf else f"be a number of at least {low}"
    )


def _is_message(v: Any) -> bool:
    return type(v) is dict and type(v.get("role")) is str


def _is_prompt(v: Any) -> bool:
    if type(v) is str:
        return True
    if type(v) is not list or not v:
        return False
    kinds = {type(item) for item in v}
    if kinds == {list}:
        return all(item and all(type(token) is int for token in item) for item in v)
    return kinds in ({str}, {int})


_TEXT = Field(lambda v: type(v) is str, "be a string")
_SWITCH = Field(lambda v: type(v) is bool, "be true or false")
_OBJECT = Field(lambda v: type(v) is dict, "be an object")
_LIST = Field(lambda v: type(v) is list, "be a list")
_STOP = Field(
    lambda v: type(v) is str or (type(v) is list and all(type(s) is str for s in v)),
    "be a string or a list of strings",
)

_SCORED = Field(lambda v: v is False, "be left out: the prompt's own logprobs are not served")
"""What makes vLLM score the prompt's tokens. With LoRA on, 0.32 (CPU) mistakes the number of rows then, and
the engine dies with all that runs on it as soon as another request shares the batch: one tenant could take
the others down."""

_COMMON: dict[str, Field] = {
    "prompt_logprobs": _SCORED,
    "model": _TEXT,
    "stream": _SWITCH,
    "stream_options": _OBJECT,
    "n": _integer(1),
    "best_of": _integer(1),
    "temperature": _number(0),
    "top_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "seed": _integer(-(2**63), 2**63 - 1),
    "stop": _STOP,
    "user": _TEXT,
    "safety_identifier": _TEXT,
    "logit_bias": _OBJECT,
    "ignore_eos": _SWITCH,
    "min_tokens": _integer(0),
}

CHAT = Endpoint(
    "/v1/chat/completions",
    "messages",
    {
        **_COMMON,
        "messages": Field(
            lambda v: type(v) is list and bool(v) and all(map(_is_message, v)),
            "be a non-empty list of messages, each an object with a `role`",
        ),
        "max_tokens": _integer(1),
        "max_completion_tokens": _integer(1),
        "logprobs": _SWITCH,
        "echo": _SCORED,
        "top_logprobs": _integer(0),
        "tools": _LIST,
        "response_format": _OBJECT,
        "parallel_tool_calls": _SWITCH,
    },
)

COMPLETIONS = Endpoint(
    "/v1/completions",
    "prompt",
    {
        **_COMMON,
        "prompt": Field(_is_prompt, "be a string, a list of strings, or a list (of lists) of token ids"),
        "max_tokens": _integer(0),
        "logprobs": _integer(0),
        "echo": _SWITCH,
        "suffix": _TEXT,
    },
)

ENDPOINTS: dict[str, Endpoint] = {e.path: e for e in (CHAT, COMPLETIONS)}
