"""Parses request bodies and checks them against the tables in `gateway.fields`.

The engine never gets the client's bytes. It gets a new object, built field by field from what was parsed and
checked. So the engine cannot read the body differently (duplicate keys, UTF-16), and no field without a row
in the tables reaches it.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from adapters.model import Task
from gateway.config import Settings
from gateway.dataplane.dialect import OPENAI, Dialect
from gateway.dataplane.labels import label_of
from gateway.dataplane.reply import Reply
from gateway.errors import FlorinError, too_deep
from gateway.fields.grammars import allow_tools, check_tools
from gateway.fields.media import media_hosts
from gateway.fields.messages import MUST as MESSAGES_MUST
from gateway.fields.rule import FieldPolicy, FieldReading, Table, WrongError, read
from gateway.fields.tables import CHAT as CHAT_FIELDS
from gateway.fields.tables import COMPLETIONS as COMPLETION_FIELDS
from gateway.fields.tables import PROMPT_MUST

Body = dict[str, Any]

MAX_CHOICES = 1024
"""Maximum answers to one request: a list of prompts takes few bytes, and the engine has no limit itself."""

COMPLETIONS_OUTPUT = 16
"""Most output tokens of /v1/completions without `max_tokens`: engines assume what OpenAI does."""

ENGINES_REFUSALS = frozenset(
    {"request_refused", "feature_disabled", "context_length_exceeded", "unsupported_endpoint"}
)
"""Errors with which an engine that works refuses a request."""
_AFTER_TOOLS = b'],"messages":['
_QUOTED = re.compile(r"`([^`\s]{1,100})`")

Translate = Callable[[Body, FieldReading], tuple[Body, Reply]]
"""Reads a client's body, as parsed from JSON, and returns the body of a chat, to be checked as chats are, and
the reply for it. Raises WrongError with the client's name of the field."""


class AnswerKind(StrEnum):
    """What an engine answers with, and so how `gateway.routing.answer_kinds` reads it."""

    CHOICES = "choices"
    """Generated text, streamed or not."""
    TOKENS = "tokens"
    """The tokens of a text."""
    TEXT = "text"
    """The text of tokens."""
    VECTORS = "vectors"
    """A vector for each input."""
    SCORES = "scores"
    """A score for each pair of texts."""
    RANKING = "ranking"
    """Documents with their scores, the best first."""


FREE = frozenset({AnswerKind.TOKENS, AnswerKind.TEXT})
"""Answers that need only an engine's tokenizer: no tokens are processed, counted or billed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of the data plane that engines answer."""

    path: str
    required: str
    """The engine's field without which there is no request."""
    required_must: str
    fields: Table
    """The engine's fields: of `route`."""
    engine_path: str = ""
    """The engine's route; empty: the same path."""
    chat: bool = False
    """The engine gets a chat."""
    answer: AnswerKind = AnswerKind.CHOICES
    inputs: Callable[[Body], int] | None = None
    """For a request that generates nothing: counts its inputs, and makes the checks that involve
    more than one of the engine's fields. Raises WrongError."""
    task: Task | None = "generate"
    """What an engine must be for; None: any engine does it."""
    translate: Translate | None = None
    """For a dialect; None: the engine speaks it."""
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """A dialect's names of the engine's fields, where they differ: for error messages. With `[]` in both, an
    index stays: `{"tools[].function": "tools[]"}`. The first that fits a field counts."""
    dialect: Dialect = OPENAI
    """How errors are worded."""
    route: str = field(init=False)
    """The engine's path."""
    free: bool = field(init=False)
    """No tokens are processed, so none are counted or billed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "route", self.engine_path or self.path)
        object.__setattr__(self, "free", self.answer in FREE)

    def named(self, field: str) -> str:
        """The client's name of an engine's field, or of a part of it."""
        for theirs, ours in self.names.items():
            match = re.match(re.escape(theirs).replace(r"\[\]", r"(\[\d+\])") + r"(?!\w)", field)
            if match is not None:
                rest = field[match.end() :]
                if rest.startswith("["):  # an index of the engine's list, which is not the client's
                    return ours
                return ours.replace("[]", match[1]) + rest if match.groups() else ours + rest
        return field

    def rename(self, error: FlorinError) -> None:
        """Give an engine's refusal the client's names of its fields. Idempotent."""
        if self.names and error.code in ENGINES_REFUSALS:
            error.param = error.param and self.named(error.param)
            error.message = _QUOTED.sub(lambda name: f"`{self.named(name[1])}`", error.message)


class Sold(NamedTuple):
    """What a request is for, as far as a rate card may tell prices apart before an engine is chosen."""

    adapter: str = ""
    """Full name; empty for the base model."""
    base_model: str = ""
    batch: bool = False
    task: Task = "generate"


UNNAMED: Final = Sold()


@dataclass(slots=True)
class Call:
    """One checked request.

    `payload` serializes `body` and empties it, since a parsed body takes many times its serialized size.
    """

    endpoint: Endpoint
    body: Body
    """The engine's request, except for what `payload` adds."""
    model: str
    """The name that the client sent."""
    stream: bool
    n: int
    """Answers to each prompt."""
    prompts: int
    """Number of prompts, or of inputs that are not answered with text."""
    include_usage: bool
    """The client wants the usage chunk at the end of the stream."""
    continuous_usage: bool
    """The client wants running counts on every chunk."""
    user: str
    """The application's end user, as the application names it; empty: not given."""
    unknown: int
    """Number of fields without a row that were left out, on all levels."""
    unknown_names: tuple[str, ...]
    """The first of these, truncated."""
    end_user: str | None = None
    """The end user for reports, see `labels`: `safety_identifier`, else `user`."""
    tag: str | None = None
    """The label `metadata.tag`, for reports."""
    session: str = ""
    """The label `metadata.session`, for limits; empty: not given."""
    scored: str = ""
    """The field that asks for scores of the prompt's tokens; empty: none does."""
    estimate: int = 0
    """Estimated prompt tokens, in case the engine never reports them."""
    tools_size: int = 0
    """Bytes of the tools in the prompt, which `estimate` leaves out; set by `payload`."""
    most_output: int | None = None
    """`output_limit`, once `payload` has emptied the body."""
    size: int = 0
    """Bytes of the body."""
    sold: Sold = UNNAMED
    context: int = 0
    """Most tokens of a prompt and its answer that the model's engines take; 0: unknown."""
    encoding: str = ""
    """Format of the vectors asked for; empty: the engine's default, lists of numbers."""
    results: int = 0
    """Number of ranked results asked for; 0: all."""
    hides_reasoning: bool = False
    """The client wants a stream without the model's reasoning. Florin removes it, since an engine that does
    says nothing meanwhile, not even how many tokens it generates."""
    reply: Reply | None = None
    """Translates the answer; None: the client gets it as the engine sends it."""
    choices: int = field(init=False)
    """Number of texts that the engine generates."""

    def __post_init__(self) -> None:
        self.choices = self.n * self.prompts if self.endpoint.inputs is None else 0

    @property
    def output_limit(self) -> int | None:
        """Most output tokens of each choice; None: the engine decides."""
        bound = output_bound(self.body)[1]
        return COMPLETIONS_OUTPUT if bound is None and not self.endpoint.chat else bound

    def payload(self, engine_name: str, cache_salt: str) -> bytes:
        """The body for the engine, in the order of the prompt: tools, messages, and then the rest. Call it
        once."""
        self.most_output = self.output_limit
        body = {name: self.body[name] for name in ("tools", self.endpoint.required) if name in self.body}
        body |= self.body
        self.body = {}
        body["model"] = engine_name
        if "cache_salt" in self.endpoint.fields:
            body["cache_salt"] = cache_salt
        if self.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        if self.hides_reasoning:
            del body["include_reasoning"]
        try:
            payload = orjson.dumps(body)
        except TypeError:
            raise too_deep() from None
        if "tools" in body:
            self.tools_size = max(0, payload.find(_AFTER_TOOLS))
        return payload


def output_bound(body: Body) -> tuple[str, int | None]:
    """The field that bounds the output tokens of each choice, and its value."""
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None:
            return name, body[name]
    return "max_tokens", None


def policy(settings: Settings) -> FieldPolicy:
    """The settings that concern request fields."""
    return FieldPolicy(
        max_n=settings.max_n,
        media_hosts=media_hosts(settings.allowed_media_hosts),
        chat_templates=settings.chat_templates,
        structured_outputs=settings.structured_outputs,
        passed=frozenset(settings.passed_fields),
    )


def parse(endpoint: Endpoint, raw: bytes, rules: FieldPolicy) -> Call:
    """Parse and check `raw`. Raises FlorinError with the invalid field as `param`."""
    try:
        body = orjson.loads(raw.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise too_deep() from None
        raise FlorinError("invalid_json", f"The body is not valid JSON in UTF-8: {error}.") from None
    if type(body) is not dict:
        raise FlorinError("invalid_json", "The body must be a JSON object.")
    reading = FieldReading(rules)
    reply = None
    try:
        if endpoint.translate is not None:
            body, reply = endpoint.translate(body, reading)
    except WrongError as error:
        raise _wrong_field(error) from None
    try:
        sent = read(endpoint.fields, body, reading, top=True)
        if "tools" in sent or "tool_choice" in sent:
            allow_tools(sent)
            check_tools(sent, reading)
    except WrongError as error:
        error.path = endpoint.named(error.path)
        raise _wrong_field(error) from None
    try:
        call = _call(endpoint, body, sent, reading)
    except WrongError as error:  # with the engine's name of a field
        raise _wrong(endpoint.named(error.path), error.must) from None
    call.reply = reply
    return call


def _call(endpoint: Endpoint, given: Mapping[str, Any], sent: Body, reading: FieldReading) -> Call:
    """The checks that involve more than one field."""
    if not given.get("model"):
        raise _wrong("model", "be the name of an adapter")
    prompts = _count_generated(endpoint, sent) if endpoint.inputs is None else endpoint.inputs(sent)
    stream = sent.get("stream", False)
    options = sent.pop("stream_options", {})
    usage = options.get("include_usage", False)
    metadata = given.get("metadata")
    return Call(
        endpoint=endpoint,
        body=sent,
        model=given["model"],
        stream=stream,
        n=sent.get("n", 1),
        prompts=prompts,
        include_usage=usage,
        continuous_usage=usage and options.get("continuous_usage_stats", False),
        hides_reasoning=stream and sent.get("include_reasoning") is False,
        user=given.get("user") or given.get("safety_identifier") or "",
        end_user=label_of(given.get("safety_identifier") or given.get("user")),
        tag=label_of(metadata.get("tag")) if type(metadata) is dict else None,
        session=(label_of(metadata.get("session")) or "") if type(metadata) is dict else "",
        scored=_scored(endpoint, sent),
        encoding=sent.get("encoding_format", ""),
        results=sent.get("top_n", 0),
        unknown=reading.unknown,
        unknown_names=tuple(reading.names),
    )


def _count_generated(endpoint: Endpoint, sent: Body) -> int:
    """The number of prompts of a request that generates."""
    if sent.get(endpoint.required) is None:
        raise _wrong(endpoint.named(endpoint.required), endpoint.required_must)
    if not sent.get("echo", True):
        del sent["echo"]
    prompts = _prompts(sent["prompt"]) if endpoint.required == "prompt" else 1
    if sent.get("n", 1) * prompts > MAX_CHOICES:
        raise _wrong("prompt", f"ask for at most {MAX_CHOICES} answers in total, counting `n` per prompt")
    _, most = output_bound(sent)
    if most is not None and sent.get("min_tokens", 0) > most:
        raise _wrong("min_tokens", f"be at most `{endpoint.named('max_tokens')}`")
    return prompts


def _scored(endpoint: Endpoint, sent: Body) -> str:
    """The field of a request that has its prompt scored. A chat that echoes always has."""
    if "prompt_logprobs" in sent:
        return "prompt_logprobs"
    return "echo" if sent.get("echo") and (endpoint.chat or "logprobs" in sent) else ""


def _prompts(prompt: Any) -> int:
    return len(prompt) if type(prompt) is list and type(prompt[0]) is not int else 1


def _wrong(name: str, must: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` must {must}.", param=name)


def _wrong_field(error: WrongError) -> FlorinError:
    if error.code == "unsupported_parameter":
        return FlorinError(error.code, f"`{error.path}` is not supported: {error.must}.", param=error.path)
    return FlorinError(error.code, f"`{error.path}` must {error.must}.", param=error.path)


CHAT = Endpoint("/v1/chat/completions", "messages", MESSAGES_MUST, CHAT_FIELDS, chat=True)
COMPLETIONS = Endpoint("/v1/completions", "prompt", PROMPT_MUST, COMPLETION_FIELDS)
