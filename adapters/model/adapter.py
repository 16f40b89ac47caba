"""Adapters and their versions, and what is left of removed ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapters.errors import Finding


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
    """Absolute path of the directory that engines read, or a URL in a bucket."""
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
    min_vllm: str = ""
    """Release of vLLM, `0.33`, from which on engines apply all of its weights; empty: all do."""

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
    """What stops or promotes the canary by itself."""
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
