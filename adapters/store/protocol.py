"""The `Store` protocol: everything that Florin keeps in Redis. `adapters.store.redis` and the tests' memory
store implement it.

A store holds two things. **Documents** are small JSON texts, addressed by kind and id and changed by atomic
commits; each change is one event in the feed. **Placement** is the assignment of versions to slots of
engines. It is changed only by the atomic operations below; each change is also an event (kind `placement`, id
`engine/version`).

Promises, held by tests/contract and tests/property:
- A commit is atomic, and its events are contiguous in the feed.
- Events have consecutive sequence numbers. A follower that misses one gets a GapError.
- An engine never has more placements than the `slots` given in the claims.
- A version that is pinned, loading or leased is never evicted.
- A version is loading on at most one engine at a time, for one owner. A load that is overruled because its
  engine is ignored loses its slot there, and its owner's `confirm` has no effect.
- `confirm` and `abandon` have no effect if the owner's claim has lapsed or been taken over.
- A lease expires `ttl_ms` after its last renewal, even if its worker has died.
- A change under a stale fence has no effect (FencedError).
- An audit note is written if and only if its changes are.
- Once a position is trusted, a registry that does not continue it is neither changed nor read as a whole
  (RegistryRegressedError). See `adapters.store.continuity`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter

from adapters.model import Placement, dump, load
from adapters.store.continuity import Position

DOCUMENT_KINDS = (
    "tenant", "key", "adapter", "version", "engine", "base", "pin",
    "tombstone", "pending_deletion", "fingerprint", "serving_status", "death", "hang",
)  # fmt: skip
"""`pin`: id is a version's `engine_name`; its presence protects the version from eviction. `tombstone` to
`serving_status`: see the classes of those names in `adapters.model`. `death`, `hang`: see
`gateway.routing.engine_deaths`.
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of holding a role: the token returned by `lead`. A holder that has lost the role without noticing
    changes nothing with it."""

    role: str
    token: int


@dataclass(frozen=True, slots=True)
class AuditNote:
    """Who did what to what; written atomically with the change itself."""

    actor: str
    """`key:<id>`, `bootstrap`, or the component that acted, such as `reconciler`."""
    action: str
    """`adapter.promote`, one of those listed in docs/reference/audit.md."""
    subject: str
    """`acme/support`, `a1`, …"""
    version: str = ""
    """`v3` if the action concerns a version."""
    details: dict[str, Any] = field(default_factory=dict)
    """JSON. Never a secret."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: str
    """Id in the stream: `<ms>-<n>`, ascending, never reused."""
    note: AuditNote

    @property
    def at(self) -> int:
        """Unix microseconds, UTC, by the server's clock."""
        return int(self.id.partition("-")[0]) * 1000


_notes = TypeAdapter(AuditNote)


class GapError(Exception):
    """The feed no longer holds the follower's next event; take a new snapshot."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one document in a commit."""

    kind: str
    id: str
    data: str | None
    """New JSON text; None deletes the document."""
    expect: str | None | Literal["any"] = "any"
    """The current JSON text, byte for byte (None: no document); otherwise the commit conflicts. `any` accepts
    every state; it is not JSON, so it cannot be mistaken for a document."""


@dataclass(frozen=True, slots=True)
class Event:
    seq: int
    kind: str
    id: str
    data: str | None
    mark: str = field(default="", compare=False)
    """See `Position.mark`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything as of `seq`. `documents` has every kind in DOCUMENT_KINDS and `placement`, whose `for_ms`
    count from the snapshot (0 if expired)."""

    position: Position
    documents: dict[str, dict[str, str]]

    @property
    def seq(self) -> int:
        return self.position.seq


class ClaimResult(StrEnum):
    CLAIMED = "claimed"
    """The slot is yours: unload `victim`, if any, load, then confirm or abandon."""
    RESIDENT = "resident"
    """`engine`, this one or another, already holds it."""
    LOADING = "loading"
    """A worker is already loading it on `engine`; wait for its event."""
    FULL = "full"
    """Every slot is leased, loading or pinned. The least recently used evictable version has been marked
    `leaving`; retry once it has drained. Retry within a second to keep the mark. Meanwhile a claim of the
    leaving version itself is also answered FULL, so that it cannot keep its slot for ever."""
    PINNED = "pinned"
    """Every slot is pinned, so waiting will not help."""


@dataclass(frozen=True, slots=True)
class Claim:
    result: ClaimResult
    engine: str
    victim: str | None = None
    """The version that lost its slot. If an engine has fewer slots than before, further versions may lose
    theirs; see the events."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One worker's use of one placed version since its previous report."""

    engine: str
    version: str
    age_ms: int
    """Time since its last use."""
    in_flight: int
    """Requests of this worker in flight there; 0 ends the worker's lease."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server's own status; None if the server does not report it or denies access."""

    server: str
    """`valkey 8.1.1`."""
    persistent: bool | None = None
    """Whether acknowledged writes survive a restart, according to its settings."""
    trouble: str = ""
    """Disk write errors that it reports."""
    policy: str | None = None
    """Its `maxmemory-policy`: `noeviction` refuses writes when memory is full; every other policy loses
    data."""
    limit_bytes: int | None = None
    """Memory limit in bytes; 0 for none."""
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """The contents that replace a registry that has lost data."""

    documents: dict[str, dict[str, str]] | None
    """None keeps the server's documents."""
    secrets: dict[str, str]
    """If the server's documents stay, only missing secrets are written."""


def check_kinds(changes: Sequence[Change]) -> None:
    """Raises ValueError for an unknown kind of document."""
    for change in changes:
        if change.kind not in DOCUMENT_KINDS:
            raise ValueError(f"{change.kind!r} is not a kind of document")


def dump_note(note: AuditNote) -> str:
    return _notes.dump_json(note).decode()


def load_note(text: str) -> AuditNote:
    return _notes.validate_json(text)


def after_entry(id_: str) -> str:
    """The smallest id of an audit entry after this one."""
    ms, _, n = id_.partition("-")
    return f"{ms}-{int(n) + 1}"


def with_time_left(placement: str, left_ms: int) -> str:
    """The JSON of a placement that expires in `left_ms`, as in a snapshot."""
    return dump(replace(load(Placement, placement), for_ms=max(0, left_ms)))


class Store(Protocol):
    """Access to the shared state. Every method raises StoreUnavailableError if the server cannot be reached
    in time."""

    async def snapshot(self) -> Snapshot: ...

    def trust(self, position: Position) -> None:
        """Set the position that the caller knows. From now on, a registry that does not continue it is
        refused."""
        ...

    async def inspect(self, known: Position) -> tuple[Position, str]:
        """The registry's position, and why it cannot be a continuation of `known` as a sentence (empty if it
        can). Ignores the trusted position."""
        ...

    async def snapshot_unchecked(self) -> Snapshot:
        """Like `snapshot` but ignoring the trusted position: what remains of a registry that has lost
        data."""
        ...

    async def begin_epoch(
        self, found: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        """Carry out an operator's decision: the server's current contents, or `restored` in their place,
        become the registry in a new epoch (`continuity.next_epoch`) that every worker adopts. Raises
        ConflictError if the registry is no longer at `found`."""
        ...

    def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        """Yield batches of events from `after` + 1 on, indefinitely, with at least one batch (possibly empty)
        per second to prove liveness. Raises GapError, StoreUnavailableError; after either, start again with a
        new snapshot. Close it (`aclose`) when done."""
        ...

    async def commit(
        self, changes: Sequence[Change], *, audit: AuditNote | None = None, fence: Fence | None = None
    ) -> int:
        """Apply the changes atomically and return the sequence number of the last event. `audit` is written
        with the changes. Raises ConflictError if an expectation fails, FencedError."""
        ...

    async def audit(self, after: str = "", *, count: int = 1000) -> list[AuditEntry]:
        """The entries after the one with that id, oldest first."""
        ...

    async def trim_audit(self, through: str, *, keep: int) -> None:
        """Delete entries up to that id, which are archived elsewhere, but keep the newest `keep`."""
        ...

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        ignore: Iterable[str] = (),
        reload: bool = False,
    ) -> Claim:
        """Claim a slot of `engine` for `version`.

        `ignore` names engines whose residency does not count because they are down: a version that is
        resident or loading only there is claimed again. `reload` claims a version that is assigned to
        `engine` but that the engine has forgotten after a restart; its slot returns to loading. The claim
        expires after `ttl_ms`; any worker may then take it over.
        """
        ...

    async def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int) -> bool:
        """Record a successful load. False if the claim was lost meanwhile. `grace_ms` protects the version
        until the waiters' own leases arrive."""
        ...

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        """Release the slot after a failed load. False if the claim was lost meanwhile."""
        ...

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        """Remove one version's placement on `engine`, or with None the engine's entire placement and leases.
        Raises FencedError."""
        ...

    async def mark_lost(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        """Mark these versions (None for all) on a restarted engine as `lost`, whether they were resident,
        leaving or loading. Claims of loads into the old process fail their `confirm`. A lost version keeps
        its slot and recency, counts as neither resident nor loading, can be claimed there by any worker
        without `reload`, and is evicted first. Raises FencedError."""
        ...

    async def heartbeat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        """Record a heartbeat of the agent of `engine`, with its report as JSON `text`. Not an event."""
        ...

    async def heartbeats(self) -> dict[str, str]:
        """Engine → the last report of its agent, for agents whose heartbeat has not expired."""
        ...

    async def touch(self, worker: str, touches: Sequence[Touch], *, ttl_ms: int) -> None:
        """Update recency and the worker's leases in one batch. Versions that are no longer placed are
        ignored."""
        ...

    async def recency(self, engine: str) -> dict[str, int]:
        """Assigned versions of `engine` → age in ms since last use, most recent first."""
        ...

    async def leases(self, engine: str) -> dict[str, int]:
        """Versions of `engine` → requests in flight under live leases, over all workers. A grace period
        counts as one, as does a worker of an earlier Florin, which reports no count."""
        ...

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        """Acquire or renew a role. Returns a token above 0, higher for each new holder, or 0 if another owner
        holds it."""
        ...

    async def resign(self, role: str, owner: str) -> None: ...

    async def secret(self, name: str, fresh: str) -> str:
        """The installation's secret of that name; stores `fresh` if there is none."""
        ...

    async def time(self) -> int:
        """Unix microseconds, by the server's clock."""
        ...

    async def server_info(self) -> ServerInfo: ...

    async def close(self) -> None: ...
