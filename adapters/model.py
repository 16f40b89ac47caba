"""The nouns of Florin's adapter side: frozen, typed, and stored as JSON documents.

Everything here is data. What changes it lives in `registration`, `loader` and `reconciler`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import TypeAdapter

from adapters.errors import Finding, InvalidNameError

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
"""Names of tenants, adapters and engines: they stand in URLs, labels, files and Redis keys."""


def check_name(what: str, name: str) -> str:
    """`name` itself, or InvalidNameError that says what a good one looks like."""
    if NAME_PATTERN.fullmatch(name):
        return name
    shown = name if len(name) <= 80 else name[:80] + "…"
    raise InvalidNameError(
        f"{what} name {shown!r} is not valid: use 1 to 63 of a-z, 0-9, '-' and '_', "
        "beginning and ending with a letter or a digit."
    )


@dataclass(frozen=True, slots=True, order=True)
class AdapterName:
    """`acme/support`: the name by which a tenant's adapter is known everywhere."""

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
    """Other names and paths by which an adapter's `base_model_name_or_path` may mean this model."""
    config: dict[str, Any] | None = None
    chat_template: str | None = None
    """SHA-256, hex, of its chat template; empty: it has none; None: unknown."""


Purchase = Literal["on_demand", "spot", "reserved"]
"""How a GPU is paid for."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One vLLM server process."""

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
    state: Literal["active", "cordoned", "draining"] = "active"
    """cordoned: takes no new adapters; draining: takes no new requests either."""
    region: str = ""
    """Where its GPUs are paid for, in the price book's words; empty: not said."""
    purchase: Purchase = "on_demand"
    registered: int = 0
    """Unix microseconds, UTC: since when it is paid for; 0: unknown."""
    epoch: str = ""
    """Of its process, given by `florin engine run`: another one holds nothing of what the last one held.
    Empty: nobody says, and only its own list tells."""
    agent: str = ""
    """URL of the `florin engine run` that stages files on its host; empty: it reads the artifact store."""
    stopping: bool = False
    """Its host is shutting it down: no new requests. Its next epoch ends this; `state` is the operator's."""
    stopped: int = 0
    """Unix microseconds, UTC: since when it has been down because its host shut it down; 0: it is not."""
    key: str = ""
    """Id of its host's own API key, with which it was registered; empty: an operator's was used."""

    @property
    def takes_requests(self) -> bool:
        return self.state != "draining" and not self.stopping

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
    """What engines call it: opaque, never reused, never shown to clients."""
    path: str
    """Absolute directory that engines read."""
    base_model: str
    rank: int
    size_bytes: int
    source: str
    """Where it came from, without credentials."""
    created: int
    """Unix microseconds, UTC."""
    retired: int | None = None
    """Unix microseconds, UTC: since when nobody may call it."""
    trusted: bool = False
    """An operator has looked at its serving status and released it: it is not compared with the base
    again."""
    warnings: tuple[Finding, ...] = ()
    """What the checks said when they let it pass."""

    @property
    def id(self) -> str:
        return f"{self.adapter}@v{self.number}"

    @property
    def tenant(self) -> str:
        return self.adapter.partition("/")[0]


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
    """What was live before, oldest first: `rollback` goes back through it, step by step."""
    latest: int = 0
    """Highest version number ever given: numbers are never reused, even after removals."""
    pinned: bool = False
    shared_with: tuple[str, ...] = field(default=())

    @property
    def previous(self) -> int | None:
        return self.history[-1] if self.history else None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A removed adapter: its numbers are never given again."""

    latest: int
    removed: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """A version that nobody may call any more, whose files an engine may still hold. Its id is the version's
    `engine_name`; the reconciler removes both when no engine can."""

    version: str
    """`acme/support@v3`."""
    digest: str
    path: str
    since: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How a version, or a base model, first answered the fixed prompt: what it is held to ever after. Its id
    is the name that engines call it by."""

    prompt: str
    """Which fixed prompt and parameters: fingerprints of others are not comparable."""
    text: str
    """The greedy continuations."""
    logprobs: tuple[float, ...]
    """Of the likeliest first tokens of each, as `adapters.placement.fingerprint` orders them."""
    engine: str
    gpu_type: str
    taken: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Why a version is not served, though it is registered. Its id is the version's `engine_name`.

    One whose id is an engine's name says instead that the engine is not trusted with loads (`engine_suspect`,
    no `version`) until it is another process, or its base model answers like itself again."""

    state: Literal["quarantined", "failed"]
    """quarantined: it answered wrongly, and only an operator releases it; failed: it cannot be loaded, and
    the reconciler tries again now and then."""
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
    """Unix microseconds, UTC: when the next attempt is due; 0: never by itself."""
    evidence: dict[str, Any] | None = None
    """What was compared, for the operator."""


class SlotState(StrEnum):
    LOADING = "loading"
    RESIDENT = "resident"
    LEAVING = "leaving"
    """Resident, but takes no new requests, so that another version gets its turn in the slot."""
    LOST = "lost"
    """The engine's process that held it is gone. The slot is kept for it, unless another needs it first,
    until the reconciler has loaded it again."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One version's assignment to one slot of one engine."""

    engine: str
    version: str
    """The version's `engine_name`."""
    state: SlotState
    owner: str = ""
    """Who loads it, while it is loading."""
    for_ms: int = 0
    """How long from the event on `loading` or `leaving` holds; afterwards it may be overridden."""

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
    return _codecs[type(document)].dump_json(document).decode()


def load(kind: type[D], text: str | bytes) -> D:
    document: D = _codecs[kind].validate_json(text)
    return document
