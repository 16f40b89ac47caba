"""The registry: documents, the feed of their changes, and the audit log.

Documents are small JSON texts, addressed by kind and id and changed by atomic commits. Each change is one
event in the feed.

Promises, held by tests/contract and tests/property:
- A commit is atomic, and its events are contiguous in the feed.
- Events have consecutive sequence numbers. A follower that misses one gets a GapError.
- A change under a stale fence has no effect (FencedError).
- An audit note is written if and only if its changes are.
- Once a position is trusted, a registry that does not continue it is neither changed nor read as a whole
  (RegistryRegressedError). See `adapters.store.continuity`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter

from adapters.model import Placement, dump, load
from adapters.store.continuity import Position
from adapters.store.protocol.coordination import Fence

DOCUMENT_KINDS = (
    "tenant", "key", "adapter", "version", "engine", "base", "pin",
    "tombstone", "pending_deletion", "fingerprint", "serving_status", "death", "hang", "self_service",
)  # fmt: skip
"""`pin`: id is a version's `engine_name`; its presence protects the version from eviction. `tombstone` to
`serving_status`: see the classes of those names in `adapters.model`. `death`, `hang`: see
`gateway.routing.engine_deaths`. `self_service`: id is a tenant's name; see
`gateway.fleet.adapters.operations.quotas`.
"""


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


class RegistryStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def snapshot(self) -> Snapshot: ...

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
        self, current: Position, begun: Position, restored: Restored, *, note: AuditNote
    ) -> None:
        """Carry out an operator's decision: the server's current contents, or `restored` in their place,
        become the registry in a new epoch (`continuity.next_epoch`) that every worker adopts. Raises
        ConflictError if the registry is no longer at `current`."""
        ...
