"""What a request asks for: the body, read once, and held against the tables in `gateway.fields`.

What was checked is what is sent: the engine gets a serialization of a new object, built field by field from
this reading, never the client's bytes. So no second reading (duplicate keys, UTF-16) can differ from the one
that was authorised, and nothing without a row in the tables reaches an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.config import Settings
from gateway.errors import FlorinError
from gateway.fields.chat import CHAT as CHAT_FIELDS
from gateway.fields.completions import COMPLETIONS as COMPLETION_FIELDS
from gateway.fields.completions import MUST as PROMPT_MUST
from gateway.fields.grammars import check_tools
from gateway.fields.media import media_hosts
from gateway.fields.messages import MUST as MESSAGES_MUST
from gateway.fields.rule import FieldPolicy, FieldReading, Table, WrongError, read

Body = dict[str, Any]

MAX_CHOICES = 1024
"""Answers to one request: a list of prompts costs few bytes, and the engine has no limit of its own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    required: str
    required_must: str
    fields: Table


@dataclass(slots=True)
class Call:
    """One checked request.

    Before dispatch: `body`, `user` and `unknown`. After dispatch: the rest. `body` belongs to this call and
    is empty once `payload` has been made of it: parsed, it takes many times its bytes.
    """

    endpoint: Endpoint
    body: Body
    """What the engine is sent, but for what `payload` sets."""
    model: str
    """As the client named it."""
    stream: bool
    n: int
    prompts: int
    """How many prompts the body holds; more than one only in completions."""
    include_usage: bool
    """The client asked for the usage chunk at the stream's end."""
    continuous_usage: bool
    """The client asked for running counts on every chunk."""
    user: str
    """Whom the calling application serves with it, in its own words; empty: it does not say."""
    unknown: int
    """How many fields without a row were left out, on all levels."""
    unknown_names: tuple[str, ...]
    """The first of these, cut short."""
    estimate: int = 0
    """Of the prompt's tokens, should the engine never say."""

    def payload(self, engine_name: str, cache_salt: str) -> bytes:
        """What the engine is sent. Can be made once."""
        body, self.body = self.body, {}
        body["model"] = engine_name
        body["cache_salt"] = cache_salt
        if self.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        try:
            return orjson.dumps(body)
        except TypeError:
            raise FlorinError("invalid_json", "The body is nested too deeply.") from None


def policy(settings: Settings) -> FieldPolicy:
    """What the settings say about requests."""
    return FieldPolicy(
        max_n=settings.max_n,
        media_hosts=media_hosts(settings.allowed_media_hosts),
        passed=frozenset(settings.passed_fields),
    )


def parse(endpoint: Endpoint, raw: bytes, rules: FieldPolicy) -> Call:
    """The call in `raw`, or FlorinError with the field that is wrong as `param`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FlorinError("invalid_json", f"The body is not valid JSON in UTF-8: {error}.") from None
    if type(body) is not dict:
        raise FlorinError("invalid_json", "The body must be a JSON object.")
    reading = FieldReading(rules)
    try:
        sent = read(endpoint.fields, body, reading, top=True)
        check_tools(sent, reading)
    except WrongError as error:
        raise _told(error) from None
    return _call(endpoint, body, sent, reading)


def _call(endpoint: Endpoint, given: Mapping[str, Any], sent: Body, reading: FieldReading) -> Call:
    """The checks that take more than one field."""
    if not given.get("model"):
        raise _wrong("model", "be the name of an adapter")
    if sent.get(endpoint.required) is None:
        raise _wrong(endpoint.required, endpoint.required_must)
    if sent.get("echo") and sent.get("logprobs") is not None:
        raise _wrong("logprobs", "be left out where `echo` is true")  # the prompt would be scored
    if not sent.get("echo", True):
        del sent["echo"]
    n = sent.get("n", 1)
    prompts = _prompts(sent["prompt"]) if endpoint.required == "prompt" else 1
    if n * prompts > MAX_CHOICES:
        raise _wrong("prompt", f"ask for at most {MAX_CHOICES} answers in all, `n` for each prompt")
    most = sent.get("max_completion_tokens", sent.get("max_tokens"))
    if most is not None and sent.get("min_tokens", 0) > most:
        raise _wrong("min_tokens", "be at most `max_tokens`")
    stream = sent.get("stream", False)
    options = sent.pop("stream_options", None)
    if options is not None and not stream:
        raise _wrong("stream_options", "only be given when `stream` is true")
    usage = bool(options and options.get("include_usage"))
    return Call(
        endpoint=endpoint,
        body=sent,
        model=given["model"],
        stream=stream,
        n=n,
        prompts=prompts,
        include_usage=usage,
        continuous_usage=usage and bool(options.get("continuous_usage_stats")),
        user=given.get("user") or given.get("safety_identifier") or "",
        unknown=reading.unknown,
        unknown_names=tuple(reading.names),
    )


def _prompts(prompt: Any) -> int:
    return len(prompt) if type(prompt) is list and type(prompt[0]) is not int else 1


def _wrong(name: str, must: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` must {must}.", param=name)


def _told(error: WrongError) -> FlorinError:
    if error.code == "unsupported_parameter":
        return FlorinError(error.code, f"`{error.path}` is not supported: {error.must}.", param=error.path)
    return FlorinError(error.code, f"`{error.path}` must {error.must}.", param=error.path)


CHAT = Endpoint("/v1/chat/completions", "messages", MESSAGES_MUST, CHAT_FIELDS)
COMPLETIONS = Endpoint("/v1/completions", "prompt", PROMPT_MUST, COMPLETION_FIELDS)
ENDPOINTS: dict[str, Endpoint] = {e.path: e for e in (CHAT, COMPLETIONS)}
