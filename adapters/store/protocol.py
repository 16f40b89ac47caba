"""What Florin keeps in Redis, as a protocol; `redis_store` and `memory_store` both keep its promises.

Two things live here. **Documents**: small JSON texts by kind and id, changed by atomic commits, each change
one event of the feed. **Placement**: which version has which slot of which engine, changed only by the
atomic operations below, each change an event of the feed too (kind `placement`, id `engine/version`).

Promises, held by tests/contract and tests/property:
- A commit happens whole or not at all; its events are contiguous in the feed.
- Events have consecutive sequence numbers. A follower that misses one gets GapError, never silence.
- Never more placements on an engine than the `slots` given by the claims.
- A version that is pinned, loading, or leased by anyone is never evicted.
- A version is loading on at most one engine at a time, for one owner. A load that is overruled because
  its engine is ignored loses its slot there, and its owner's `confirm` changes nothing.
- `confirm` and `abandon` by an owner whose claim has lapsed or been taken over change nothing.
- A lease lapses `ttl_ms` after its last renewal, whatever became of the worker.
- A change under a fence whose role has passed on changes nothing (FencedError).
- An audit note is there exactly when its changes are.
- Once a position is trusted, nothing is changed or read as a whole in a registry that is not its
  continuation (RegistryRegressedError). See `adapters.store.continuity`.
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
    """Proof of holding a role: the token that `lead` gave. Whoever has lost the role meanwhile, and does not
    know it yet, changes nothing with it."""

    role: str
    token: int


@dataclass(frozen=True, slots=True)
class AuditNote:
    """Who did what to what: written in the same breath as the change itself."""

    actor: str
    """`key:<id>`, `bootstrap`, or the part of Florin that acted: `reconciler`."""
    action: str
    """`adapter.promote`, in a form that docs/reference/audit.md lists."""
    subject: str
    """`acme/support`, `a1`, …"""
    version: str = ""
    """`v3` where the action is about one."""
    details: dict[str, Any] = field(default_factory=dict)
    """JSON. Never a secret."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: str
    """Of the stream: `<ms>-<n>`, ascending, never used twice."""
    note: AuditNote

    @property
    def at(self) -> int:
        """Unix microseconds, UTC, by the server's clock."""
        return int(self.id.partition("-")[0]) * 1000


_notes = TypeAdapter(AuditNote)


class GapError(Exception):
    """The feed no longer holds what this follower needs next: take a new snapshot."""


@dataclass(frozen=True, slots=True)
class Change:
    """One document's part of a commit."""

    kind: str
    id: str
    data: str | None
    """New JSON text; None deletes."""
    expect: str | None | Literal["any"] = "any"
    """The JSON text that must stand there now, byte for byte (None: nothing), or the commit conflicts.
    No document is the bare word `any`, so the two cannot be confused."""


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
    """Everything, as of `seq`. `documents` has every kind of DOCUMENT_KINDS, and `placement`, whose `for_ms`
    count from the snapshot (0: none left)."""

    position: Position
    documents: dict[str, dict[str, str]]

    @property
    def seq(self) -> int:
        return self.position.seq


class ClaimResult(StrEnum):
    CLAIMED = "claimed"
    """The slot is yours: unload `victim` (if any), load, then confirm or abandon."""
    RESIDENT = "resident"
    """Another engine, or this one, holds it already: `engine`."""
    LOADING = "loading"
    """Someone is loading it on `engine`: wait for its event."""
    FULL = "full"
    """Every slot is leased, loading or pinned. The least recently used that could leave has been marked
    `leaving`: try again when it has drained. The mark is kept for those who ask again within a second; while
    it is, a claim of the leaving version itself is answered FULL too, lest it take its slot back for ever."""
    PINNED = "pinned"
    """Every slot is pinned: waiting will not help."""


@dataclass(frozen=True, slots=True)
class Claim:
    result: ClaimResult
    engine: str
    victim: str | None = None
    """What lost its slot. Where an engine has fewer slots than before, more may lose theirs: the events say
    which."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One worker's use of one placed version since its last report."""

    engine: str
    version: str
    age_ms: int
    """Since its last use."""
    in_flight: int
    """Requests of this worker that run there now; 0 ends the worker's lease."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself; None: it does not say, or not to us."""

    server: str
    """`valkey 8.1.1`."""
    persistent: bool | None = None
    """Whether what it has acknowledged survives its restart, as far as its settings tell."""
    trouble: str = ""
    """What it says went wrong with writing to disk."""
    policy: str | None = None
    """What it does when its memory is full: `noeviction` refuses writes, every other loses data."""
    limit_bytes: int | None = None
    """Of its memory; 0: none."""
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """What is put in the place of a registry that has lost something."""

    documents: dict[str, dict[str, str]] | None
    """None: what is there stays."""
    secrets: dict[str, str]
    """Where what is there stays, only those that are missing."""


def check_kinds(changes: Sequence[Change]) -> None:
    """ValueError for a kind that no snapshot would show."""
    for change in changes:
        if change.kind not in DOCUMENT_KINDS:
            raise ValueError(f"{change.kind!r} is not a kind of document")


def dump_note(note: AuditNote) -> str:
    return _notes.dump_json(note).decode()


def load_note(text: str) -> AuditNote:
    return _notes.validate_json(text)


def after_entry(id_: str) -> str:
    """The smallest id that an audit entry after this one can have."""
    ms, _, n = id_.partition("-")
    return f"{ms}-{int(n) + 1}"


def with_time_left(placement: str, left_ms: int) -> str:
    """The JSON of a placement that lapses in `left_ms`, as a snapshot shows it."""
    return dump(replace(load(Placement, placement), for_ms=max(0, left_ms)))


class Store(Protocol):
    """All methods raise StoreUnavailableError when the server cannot be reached in time."""

    async def snapshot(self) -> Snapshot: ...

    def trust(self, position: Position) -> None:
        """From now on, this is what the caller knows: what is not its continuation is another registry."""
        ...

    async def look(self, known: Position) -> tuple[Position, str]:
        """Where the registry stands, and why that cannot be what became of `known`, in a sentence (empty:
        it can), whatever is trusted."""
        ...

    async def rest(self) -> Snapshot:
        """As `snapshot`, whatever is trusted: of a registry that has lost something, what is left."""
        ...

    async def begin_epoch(
        self, found: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        """An operator has decided: what is there now, or all of `restored` in its place, is the registry, in
        an epoch of its own (`continuity.next_epoch`), which every worker takes over.
        Raises ConflictError when it no longer stands at `found`."""
        ...

    def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        """Batches of events from `after` + 1 on, for ever; empty batches now and then prove liveness
        (at least one a second). Raises GapError, StoreUnavailableError; either way, what follows must begin
        with a new snapshot. Close it (`aclose`) when done."""
        ...

    async def commit(
        self, changes: Sequence[Change], *, audit: AuditNote | None = None, fence: Fence | None = None
    ) -> int:
        """Sequence number of the last event. Raises ConflictError when an expectation fails, FencedError.
        `audit` is written with the changes, or not at all."""
        ...

    async def audit(self, after: str = "", *, count: int = 1000) -> list[AuditEntry]:
        """The entries after the one of that id, oldest first."""
        ...

    async def trim_audit(self, through: str, *, keep: int) -> None:
        """Drop entries up to that id, which are stored elsewhere, but the newest `keep`."""
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
        """Ask for a slot of `engine` for `version`.

        `ignore` names engines whose residency the caller knows to be useless (they are down): a version
        resident or loading only there is claimed anew. `reload` claims a version that `engine` already
        has assigned but has forgotten (it restarted): its slot turns to loading again.
        The claim lapses after `ttl_ms`; then anyone may take it over.
        """
        ...

    async def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int) -> bool:
        """The load succeeded. False: the claim was lost meanwhile. `grace_ms` leases the version to those
        who waited for it, until their own leases arrive."""
        ...

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        """The load failed: give the slot back. False: the claim was lost meanwhile."""
        ...

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        """Forget one version on `engine`, or (None) the engine's whole placement and leases. Raises
        FencedError."""
        ...

    async def lose(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        """The engine's process is another one, which holds none of these (None: of all): what was resident,
        leaving or loading there is `lost` now. Claims of loads into the old process fail their `confirm`.
        A lost version keeps its slot and its recency, is taken for neither holder nor loader, may be claimed
        there by anyone without `reload`, and is the first to be evicted. Raises FencedError."""
        ...

    async def beat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        """The agent of `engine` lives; `text` (JSON) is what it says of itself. No event."""
        ...

    async def beats(self) -> dict[str, str]:
        """Engine → what its agent said last, of those that spoke within their `ttl_ms`."""
        ...

    async def touch(self, worker: str, touches: Sequence[Touch], *, ttl_ms: int) -> None:
        """Batched: recency, and the worker's leases. What is no longer placed is passed over."""
        ...

    async def recency(self, engine: str) -> dict[str, int]:
        """Assigned versions of `engine` → age in ms since last use, most recent first."""
        ...

    async def leases(self, engine: str) -> dict[str, int]:
        """Versions of `engine` → requests in flight under live leases, of all workers. A grace counts as one,
        and so does a worker of an earlier Florin, which does not say how many."""
        ...

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        """Become or stay the holder of a role. A token above 0, higher with each new holder; 0: somebody
        else holds it."""
        ...

    async def resign(self, role: str, owner: str) -> None: ...

    async def secret(self, name: str, fresh: str) -> str:
        """The installation's secret of that name; `fresh` becomes it if there is none."""
        ...

    async def time(self) -> int:
        """Unix microseconds, by the server's clock."""
        ...

    async def facts(self) -> ServerInfo: ...

    async def close(self) -> None: ...
