"""The interface of a driver: what differs from one kind of engine to the next, as data and pure functions.

Inside Florin a request is what vLLM takes, and an answer what vLLM sends. A driver says how its kind of
engine loads, lists and names adapters, turns a request into that engine's, reads what it answers to Florin's
own requests, and names its routes and metrics. It performs no I/O: `adapters.placement.engine_client` and the
gateway's transport do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from adapters.model import DriverName, Engine, Task, Unloads

Body = dict[str, Any]
"""A request's or an answer's body, as parsed from JSON."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_MODELS = 10_000
"""Most models that one engine may list, far above any real number of loaded adapters."""
MAX_NAME = 4_096
"""Maximum length of a model's name or path, in characters."""

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)
"""What a driver's reading of an answer raises if the answer is not what such an engine sends."""


class Loading(StrEnum):
    """When an engine loads an adapter."""

    CALL = "call"
    """When its control route is called; another call unloads it."""
    REQUEST = "request"
    """When a request names it, with its path. The engine evicts it as it likes."""
    START = "start"
    """When the engine starts; never later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What Florin may offer on an engine of this kind."""

    loading: Loading
    lists: bool
    """It lists the adapters that it holds. Otherwise only its answers tell."""
    unloads: Unloads = "unknown"
    """What an unload does; `unknown`: each process shows it."""
    base_for_unknown: bool = False
    """A request for an adapter that it does not hold is answered by the base model, without an error."""
    running_counts: bool
    """Each chunk of a stream has the token counts so far. Otherwise those of an aborted request are
    estimates."""
    salts: bool
    """It keeps the prefix caches of different `cache_salt`s apart. Otherwise it must have none."""
    resumes: bool = False
    """A stream that another engine began can be continued here."""
    prompt_scores: bool = False
    """It can score prompts, if its build survives that."""
    dora: bool = False
    """It applies DoRA."""
    routes: frozenset[str]
    """Routes on which it serves adapters safely."""
    tasks: frozenset[Task] = frozenset({"generate"})


@dataclass(frozen=True, slots=True)
class HttpCall:
    method: Literal["GET", "POST"]
    path: str
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter's version, as engines know it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The models that an engine reports it serves."""

    bases: dict[str, str]
    """Served name → path or hub id of the base model."""
    loras: frozenset[str] | None
    """None: it does not tell."""
    max_model_len: int | None

    def lacks(self, name: str) -> bool:
        """Whether the engine is known not to hold this version."""
        return self.loras is not None and name not in self.loras


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine tells of its flags; None: it does not."""

    loras: bool | None = None
    """Whether it takes adapters at all."""
    slots: int | None = None
    max_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Names of an engine's metrics in the Prometheus text format; empty: it has none such."""

    path: str = "/metrics"
    running: str = ""
    waiting: str = ""
    prompt_tokens: str = ""
    cached_tokens: str = ""
    generation_tokens: str = ""
    kv_usage: str = ""
    """Part of its KV cache that is in use, 0 to 1."""
    ready: str = ""
    """When its counters were created, Unix seconds."""
    moving: tuple[str, ...] = ()
    """What changes with every step of the engine and at no other time."""


class Trouble(StrEnum):
    """What an error response means, where its status does not tell."""

    UNKNOWN_MODEL = "unknown_model"
    ENGINE = "engine"
    """The engine failed; the request is sound."""


class UnsupportedFieldError(Exception):
    """The engine would ignore this field or refuse it. `reason` completes "`field` is not supported: …"."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Driver(ABC):
    """One kind of engine. Stateless."""

    name: ClassVar[DriverName]
    title: ClassVar[str]
    """For people."""
    versions: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the versions that Florin knows; empty: it does not tell versions apart."""
    capabilities: ClassVar[Capabilities]
    metrics: ClassVar[Metrics]
    health_path: ClassVar[str] = "/health"
    """200 while the engine is up."""
    models_path: ClassVar[str] = "/v1/models"
    """What `listing` reads."""
    version_path: ClassVar[str] = "/version"
    """A JSON object with its `version`."""
    limits_path: ClassVar[str] = ""
    """What `limits` reads; empty: it tells no limits."""
    loading_path: ClassVar[str] = ""
    """Under which it loads and unloads adapters, if it does so when called."""
    slots_flag: ClassVar[str]
    """What sets its number of slots."""
    advice: ClassVar[str]
    """How to start it so that it takes adapters."""

    def knows(self, version: str) -> bool:
        """Whether Florin knows this version. Of an engine that reports none, nothing is doubted."""
        return not (self.versions and version) or version.startswith(tuple(f"{v}." for v in self.versions))

    def is_mine(self, models: Any, info: Any) -> bool:  # noqa: ARG002  # most name themselves as owners
        """Whether an engine that answers so is of this kind. `models`, `info`: what `/v1/models` and `/info`
        say; None if there is no such route. Raises UNREADABLE."""
        return owned_by(models, self.name)

    # -- adapters

    def load(self, lora: Lora) -> HttpCall:
        """Only for Loading.CALL, like the next two."""
        return self._control("load", {"lora_name": lora.name, "lora_path": lora.path})

    def unload(self, name: str) -> HttpCall:
        return self._control("unload", {"lora_name": name})

    def _control(self, verb: str, body: Body) -> HttpCall:
        if self.capabilities.loading is not Loading.CALL:
            raise NotImplementedError  # nobody asks: see `load`
        return HttpCall("POST", f"{self.loading_path}/{verb}_lora_adapter", body)

    def removes(self, engine: Engine) -> bool:
        """Whether an unload frees the adapter's place in memory, as far as is known."""
        kind = self.capabilities.unloads
        return (engine.unloads if kind == "unknown" else kind) in {"removes", "refuses"}

    def is_loaded(self, status: int, message: str) -> bool:
        """Whether a refused load means that the engine holds an adapter of that name already."""
        raise NotImplementedError

    def listing(self, answer: Any) -> Listing:
        """By default a list whose adapters name the base model as their parent. Raises UNREADABLE."""
        cards = cards_of(answer)
        bases = [(name_of(c["id"]), c) for c in cards if not c.get("parent")]
        longest = bases[0][1].get("max_model_len") if bases else None
        return Listing(
            bases={name: name_of(c.get("root") or name) for name, c in bases},
            loras=frozenset(name_of(c["id"]) for c in cards if c.get("parent")),
            max_model_len=longest if type(longest) is int and longest > 0 else None,
        )

    def limits(self, answer: bytes) -> Limits:  # noqa: ARG002  # most tell none
        """Raises UNREADABLE."""
        return Limits()

    def residency(self, metrics: bytes) -> Mapping[str, bool] | None:  # noqa: ARG002  # most do not tell
        """The adapters in the engine's memory, by name → whether in a GPU slot, according to its metrics;
        at most MAX_MODELS. None: it does not tell."""
        return None

    # -- requests

    @abstractmethod
    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:
        """A client's request as this engine takes it. `body` is vLLM's, checked, and given away; `lora` None:
        for the base model. Raises UnsupportedFieldError."""

    @abstractmethod
    def ask(self, body: Body, base: str, lora: Lora | None) -> list[HttpCall]:
        """The calls that make up a request of Florin's own to /v1/completions, see
        `adapters.placement.fingerprint`."""

    def answer(self, answers: Sequence[Any]) -> Any:
        """Their answers as vLLM would give them in one. Raises UNREADABLE."""
        return answers[0]

    def trouble(self, status: int, message: str) -> Trouble | None:  # noqa: ARG002  # vLLM's statuses tell
        """What an error response, or an error event of a stream, means. None: what its status says."""
        return None


def name_of(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"a model's name is {str(value)[:80]!r}")
    return value


def cards_of(models: Any) -> list[Any]:
    """The models of an OpenAI model list. Raises UNREADABLE."""
    cards = models["data"]
    if type(cards) is not list or len(cards) > MAX_MODELS:
        raise ValueError("it lists too many models, or none")
    return cards


def owned_by(models: Any, owner: str) -> bool:
    """Whether all models of a list belong to `owner`, by which most engines name themselves."""
    return bool(models) and bool(cards_of(models)) and all(c["owned_by"] == owner for c in cards_of(models))


def select(body: Body, fields: Mapping[str, frozenset[str]], route: str, title: str) -> Body:
    """`body` without the fields that this engine does not have and that change nothing, because they have
    their default. Raises UnsupportedFieldError for others."""
    allowed = fields[route]
    for name in body.keys() - allowed:
        value = body[name]
        if value is None or (name in _DEFAULTS and value == _DEFAULTS[name]) or name in _OF_FLORIN:
            del body[name]
        else:
            raise UnsupportedFieldError(name, f"{title}, which serves this model, does not have it")
    return body


_OF_FLORIN = frozenset({"model", "cache_salt", "stream_options"})
"""What Florin sets: each driver sets its own."""
_DEFAULTS: Mapping[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "top_p": 1,
    "min_p": 0,
    "top_k": -1,
    "logit_bias": {},
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "logprobs": False,
    "top_logprobs": 0,
    "echo": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "return_prompt_text": False,
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream": False,
}
