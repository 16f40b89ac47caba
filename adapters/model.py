"""The nouns of Florin's adapter side: frozen, typed, and stored as JSON documents.

Everything here is data. The code that changes it lives in `registration`, `loader` and `reconciler`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from adapters.errors import Finding, InvalidNameError

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
"""Names of tenants, adapters and engines. They appear in URLs, labels, file names and Redis keys."""


def check_name(what: str, name: str) -> str:
    """Return `name`, or raise InvalidNameError with the rules for a valid one."""
    if NAME_PATTERN.fullmatch(name):
        return name
    shown = name if len(name) <= 80 else name[:80] + "…"
    raise InvalidNameError(
        f"{what} name {shown!r} is not valid: use 1 to 63 of a-z, 0-9, '-' and '_', "
        "beginning and ending with a letter or a digit."
    )


@dataclass(frozen=True, slots=True, order=True)
class AdapterName:
    """An adapter's full name, `acme/support`."""

    tenant: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        tenant, slash, name = text.partition("/")
        if not slash:
            raise InvalidNameError(f"{text[:80]!r} is not TENANT/NAME.")
        return cls(check_name("tenant", tenant), check_name("adapter", name))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The frozen model of one fleet. `config` is its config.json, kept so that adapters can be checked
    against it on hosts that do not hold the model."""

    name: str
    """What engines serve it as (`--served-model-name`), and what clients call it."""
    aliases: tuple[str, ...] = ()
    """Other names and paths that an adapter's `base_model_name_or_path` may use for this model."""
    config: dict[str, Any] | None = None
    chat_template: str | None = None
    """Hex SHA-256 of its chat template; empty if it has none, None if unknown."""

    @property
    def public_aliases(self) -> tuple[str, ...]:
        """Those that are no paths of engines' hosts: tenants may see them."""
        return tuple(alias for alias in self.aliases if not alias.startswith(("/", "~")))


Purchase = Literal["on_demand", "spot", "reserved"]
"""How a GPU is paid for."""


Task = Literal["generate", "embed", "score"]
"""What an engine does: `generate` text, `embed` it, or `score` pairs of texts (rerank)."""


DriverName = Literal["vllm", "sglang", "trtllm", "tgi", "lorax"]
"""A kind of engine; see `adapters.drivers`."""


def has_labels(labels: Mapping[str, str], requires: Mapping[str, str]) -> bool:
    return all(labels.get(label) == value for label, value in requires.items())


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain of an engine that loads its versions on other engines first. Until they are `moved`, the
    engine serves what it holds."""

    until: int
    """When the engine stops taking requests at the latest, Unix microseconds, UTC."""
    moved: bool = False
    """Its versions are loaded elsewhere, or could not be: it takes no new requests."""
    release: bool = True
    """Unload what it holds once its requests have finished."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One server process: vLLM, unless `driver` names another kind."""

    name: str
    url: str
    base_model: str
    gpu_type: str
    slots: int
    """`--max-loras`: how many versions Florin assigns here."""
    max_rank: int
    gpu_count: int = 1
    cpu_slots: int = 0
    """`--max-cpu-loras`, at least `slots`."""
    seats: int = 0
    """`--max-num-seqs`: how many requests it runs at a time; 0 if unknown."""
    state: Literal["active", "cordoned", "draining"] = "active"
    """cordoned: takes no new adapters; draining: takes no new requests either."""
    region: str = ""
    """Region in which its GPUs are billed, as named in the price book; empty if unknown."""
    purchase: Purchase = "on_demand"
    registered: int = 0
    """When billing for it began, Unix microseconds, UTC; 0 if unknown."""
    epoch: str = ""
    """Identifies the engine's process; set by `florin engine run`. A process with a new epoch is assumed to
    be empty. If this is empty, only the engine's own model list tells what it holds."""
    agent: str = ""
    """URL of the `florin engine run` agent that stages files on its host; if empty, the engine reads the
    artifact store directly."""
    stopping: bool = False
    """Its host is shutting it down, so it takes no new requests. The next epoch clears this flag; `state`
    belongs to the operator."""
    stopped: int = 0
    """When its host shut it down, Unix microseconds, UTC; 0 if it did not."""
    key: str = ""
    """Id of the host's own API key that registered it; empty if an operator's key did."""
    labels: dict[str, str] = field(default_factory=dict)
    """What tenants may require of it, besides `region` and `gpu_type`, which count as labels."""
    host: str = ""
    """Failure domain that it shares with other engines; empty: the host of its URL."""
    drain: Drain | None = None
    """How far its drain is, while it is draining or stopping; None: it takes no requests from the start."""
    version: str = ""
    """vLLM's version, as the registered process reports it; empty if unknown."""
    prompt_scores: Literal["unknown", "safe", "unsafe"] = "unknown"
    """Whether the registered process survives scoring a prompt: `prompt_logprobs`, `echo` with `logprobs`."""
    started: int = 0
    """When that process started, as it reports, Unix microseconds, UTC; 0 if unknown."""
    tasks: tuple[Task, ...] = ("generate",)
    """What it is asked to do, in the order of `Task`."""
    driver: DriverName = "vllm"
    """Which kind of engine it is."""
    holds: tuple[str, ...] = ()
    """Ids of the versions that it was started with, if it is of a kind that loads none later."""

    @property
    def domain(self) -> str:
        """Its failure domain. Replicas should be in different ones."""
        return self.host or urlsplit(self.url).hostname or self.url

    @property
    def all_labels(self) -> dict[str, str]:
        """With its region and GPU type."""
        return {**self.labels, "region": self.region, "gpu_type": self.gpu_type}

    @property
    def loads(self) -> bool:
        """Whether it loads adapters after its start."""
        return self.driver != "tgi"

    def fits(self, version: Version) -> bool:
        """Whether it can hold the version, whatever else it holds."""
        return version.rank <= self.max_rank and (self.loads or version.id in self.holds)

    def meets(self, requires: Mapping[str, str]) -> bool:
        """Whether it has all of these labels."""
        return not requires or has_labels(self.all_labels, requires)

    @property
    def moving(self) -> bool:
        """Its versions are being loaded elsewhere; until then it serves them."""
        return self.drain is not None and not self.drain.moved

    @property
    def takes_requests(self) -> bool:
        return (self.state != "draining" and not self.stopping) or self.moving

    @property
    def takes_adapters(self) -> bool:
        return self.state == "active" and not self.stopping


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable set of weights of an adapter."""

    adapter: str
    """Full name, `acme/support`."""
    number: int
    digest: str
    """`sha256:<hex>` over the names and contents of its files."""
    engine_name: str
    """Its name on engines: opaque, never reused, never shown to clients."""
    path: str
    """Absolute path of the directory that engines read."""
    base_model: str
    rank: int
    size_bytes: int
    source: str
    """Where it came from, without credentials."""
    created: int
    """Unix microseconds, UTC."""
    retired: int | None = None
    """When it became uncallable, Unix microseconds, UTC."""
    trusted: bool = False
    """An operator has released it from quarantine; it is not compared with the base model again."""
    warnings: tuple[Finding, ...] = ()
    """Warnings from the checks that it passed."""
    unverified_shapes: bool = False
    """An operator has vouched for its shapes, because the base model's architecture is unknown. It is served
    only by engines on which it was compared with the base model."""

    @property
    def id(self) -> str:
        return f"{self.adapter}@v{self.number}"

    @property
    def tenant(self) -> str:
        return self.adapter.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Guard:
    """When a canary is stopped without being asked: see `adapters.registry.canary_guard`."""

    action: Literal["rollback", "hold"]
    """rollback: the canary is ended; hold: its weight cannot be raised until someone says so."""
    max_error_rate: float = 0.01
    """Part of its requests that may fail, even if fewer of the live version's do."""
    max_latency_ratio: float = 1.5
    """How many times the live version's latency its own may be."""
    min_requests: int = 50
    """Requests of the canary before anything is decided."""
    window_seconds: int = 1800
    """How far back requests count, and how long each weight is watched before the next."""
    then: tuple[int, ...] = ()
    """Weights that follow by themselves, ascending; 100 makes it live."""


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """What a guard decided last. The next promotion or rollback of the adapter clears it."""

    verdict: Literal["hold", "rollback", "promote"]
    version: int
    """The canary."""
    reason: str
    at: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A name and what it resolves to."""

    name: str
    """Full name, `acme/support`."""
    live: int | None
    """Number of the live version."""
    canary: int | None = None
    """Number of the version that gets `weight` percent of the calls, while `live` gets the others."""
    weight: int = 0
    """1 to 99 with a canary, else 0."""
    history: tuple[int, ...] = ()
    """Previous live versions, oldest first; `rollback` steps back through them."""
    latest: int = 0
    """Highest version number ever assigned. Numbers are never reused, even after removals."""
    pinned: bool = False
    shared_with: tuple[str, ...] = field(default=())
    min_replicas: int = 0
    """Minimum number of engines that hold the live version, even if it is not called."""
    max_replicas: int | None = None
    """Most engines that hold one version; None: all of the fleet."""
    cost_centre: str = ""
    """Label of its tenant's usage of it in reports, where the key has none."""
    require_eval: bool = False
    """A version is promoted only if it has passed its last evaluation."""
    eval_data: str = ""
    """SHA-256 of the held-out set that this evaluation must be of; empty: of any."""
    guard: Guard | None = None
    """Of the canary."""
    canary_since: int = field(default=0, compare=False)
    """When its comparison with the live version began, which identifies that; Unix microseconds, UTC."""
    outcome: CanaryOutcome | None = None

    @property
    def previous(self) -> int | None:
        return self.history[-1] if self.history else None

    @property
    def held(self) -> bool:
        """Whether its guard holds the canary: its weight cannot be raised."""
        return self.outcome is not None and self.outcome.verdict == "hold"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A removed adapter, kept so that its version numbers are never reused."""

    latest: int
    removed: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """A version that can no longer be called but whose files an engine may still need. Its id is the
    version's `engine_name`. The reconciler deletes the files and this document once no engine can hold the
    version."""

    version: str
    """`acme/support@v3`."""
    digest: str
    path: str
    since: int
    """Unix microseconds, UTC."""


def fingerprint_id(model: str, task: Task) -> str:
    """The id of a model's fingerprint, by its name on engines. One that is served for several tasks has
    several, since vectors cannot be compared with texts."""
    return model if task == "generate" else f"{model} {task}"


def fingerprint_ids(model: str) -> list[str]:
    """The ids that a model's fingerprints may have."""
    return [fingerprint_id(model, task) for task in get_args(Task)]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The first answer of a version or base model to the fixed prompts; later answers are compared with it.
    For its id, see `fingerprint_id`."""

    prompt: str
    """Id of the prompts and parameters used. Fingerprints with different ids are not comparable."""
    text: str
    """The greedy continuations."""
    logprobs: tuple[float, ...]
    """Log probabilities of the likeliest first tokens for each prompt, in the order of
    `adapters.placement.fingerprint`; or sketches of its vectors, or scores."""
    engine: str
    gpu_type: str
    taken: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Why a registered version is not served. Its id is the version's `engine_name`.

    If the id is an engine's name, the engine itself is suspect (`engine_suspect`, no `version`): no adapters
    are loaded there until it restarts or its base model answers as before."""

    state: Literal["quarantined", "failed"]
    """quarantined: it failed verification, and only an operator can release it; failed: it cannot be loaded,
    and the reconciler retries periodically."""
    version: str
    """`acme/support@v3`."""
    code: str
    """`answers_like_base`, `unlike_itself`, `load_failed`, `engine_suspect`."""
    reason: str
    """A sentence for the caller: no engine-side names, paths or URLs."""
    engine: str
    since: int
    """Unix microseconds, UTC."""
    attempts: int = 0
    """Failed loads so far."""
    retry: int = 0
    """When the next attempt is due, Unix microseconds, UTC; 0 for never."""
    evidence: dict[str, Any] | None = None
    """The figures that were compared, for the operator."""


class SlotState(StrEnum):
    LOADING = "loading"
    RESIDENT = "resident"
    CACHED = "cached"
    """Registered on the engine, and in its CPU memory as far as known. It holds no GPU slot, and takes no
    requests until a claim activates it."""
    LEAVING = "leaving"
    """Resident, but takes no new requests, so that another version can have the slot."""
    LOST = "lost"
    """The engine process that held it is gone. The slot stays reserved until the reconciler reloads the
    version or another version needs the slot."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One version's assignment to one engine: to one of its slots, or `cached`."""

    engine: str
    version: str
    """The version's `engine_name`."""
    state: SlotState
    owner: str = ""
    """Worker that is loading it, while it is loading."""
    for_ms: int = 0
    """How long `loading` or `leaving` holds, counted from the event; afterwards it may be overridden."""
    verified: str = ""
    """Set by a load's confirmation: the engine process in which the version was sound and the fingerprint
    that it agreed with, in a form that only the verifier reads; empty if it was not verified."""

    @property
    def id(self) -> str:
        return f"{self.engine}/{self.version}"


Document = (
    BaseModel
    | Engine
    | Version
    | Adapter
    | Placement
    | Tombstone
    | PendingDeletion
    | Fingerprint
    | ServingStatus
)
D = TypeVar(
    "D",
    BaseModel,
    Engine,
    Version,
    Adapter,
    Placement,
    Tombstone,
    PendingDeletion,
    Fingerprint,
    ServingStatus,
)
_codecs: dict[type[Any], TypeAdapter[Any]] = {t: TypeAdapter(t) for t in get_args(Document)}


def dump(document: Document) -> str:
    """Without fields at their defaults, which are most: every worker keeps every document."""
    return _codecs[type(document)].dump_json(document, exclude_defaults=True).decode()


def load(kind: type[D], text: str | bytes) -> D:
    document: D = _codecs[kind].validate_json(text)
    return document
