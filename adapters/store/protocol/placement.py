"""Placement: the assignment of versions to engines, with recency and leases.

An engine has two tiers: its GPU slots, and its CPU memory, which also holds the versions that are in slots. A
placement in any state but `cached` holds a slot. A `cached` version is registered on the engine and in its
CPU memory, as far as is known; it takes no requests until a claim activates it, which needs no load.

It is changed only by the atomic operations below. Each change is an event in the registry's feed: kind
`placement`, id `engine/version`.

Promises, held by tests/contract and tests/property:
- An engine never has more placements in slots than the `slots` given in the claims, and never more in all
  than their `cpu_slots`.
- A version that is loading or leased never loses its slot, nor does a pinned one its last. Cached versions
  have none, and are dropped least recently used first.
- A version that is resident nowhere is loading on at most one engine at a time, for one owner; one that is
  resident on n engines, on at most n more. A load that is overruled because its engine is ignored loses its
  slot there, and its owner's `confirm` has no effect.
- Claims with `max_replicas` never place a version on more engines than that, besides cached, lost and ignored
  ones.
- `confirm` and `abandon` have no effect if the owner's claim has lapsed or been taken over.
- A lease or report of requests expires `ttl_ms` after its last renewal, even if its worker has died.
- A change under a stale fence has no effect (FencedError).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.loads import NONE, Heard, Loads

KEPT_MOVES = 1000


class ClaimResult(StrEnum):
    CLAIMED = "claimed"
    """The slot is yours: unload what is in `unload`, load, then confirm or abandon."""
    ACTIVATED = "activated"
    """It was cached on `engine`, and is resident now. Unload what is in `unload`."""
    RESIDENT = "resident"
    """`engine`, this one or another, already holds it."""
    LOADING = "loading"
    """A worker is already loading it on `engine`; wait for its event."""
    FULL = "full"
    """Every slot is leased, loading or pinned. The least recently used evictable version has been marked
    `leaving`; retry once it has drained. Retry within a second to keep the mark. Meanwhile a claim of the
    leaving version itself is also answered FULL, so that it cannot keep its slot for ever. Or: the version is
    on its maximum number of engines."""
    PINNED = "pinned"
    """Every slot is pinned, so waiting will not help."""


@dataclass(frozen=True, slots=True)
class Claim:
    result: ClaimResult
    engine: str
    victim: str | None = None
    """The version that lost its slot, and is cached now unless it is in `unload`. If an engine has fewer
    slots than before, further versions may lose theirs; see the events."""
    unload: tuple[str, ...] = ()
    """Versions that are no longer placed on the engine."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One worker's use of one placed version since its previous report."""

    engine: str
    version: str
    age_ms: int
    """Time since its last use."""
    in_flight: int
    """Requests of this worker in flight there; 0 ends the worker's lease."""


class PlacementStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        cpu_slots: int = 0,
        ignore: Iterable[str] = (),
        reload: bool = False,
        replica: bool = False,
        max_replicas: int | None = None,
        grace_ms: int = 0,
    ) -> Claim:
        """Claim a slot of `engine` for `version`. The claim expires after `ttl_ms`; any worker may then take
        it over.

        `cpu_slots`: how many versions both tiers hold together; at least `slots`. `ignore` names engines
        whose residency does not count because they are down: a version that is resident or loading only there
        is claimed again. `reload` claims a version that is assigned to `engine` but that the engine has
        forgotten after a restart; its slot returns to loading. `replica` claims it here although it is
        resident elsewhere; LOADING if as many engines are loading it as hold it. With `max_replicas`, the
        version is neither loaded nor activated here if so many other engines hold it, vacate its slot, or are
        loading it: LOADING if one is, otherwise FULL. `grace_ms` protects an activated version until the
        leases of its requests arrive.
        """
        ...

    async def confirm(
        self, version: str, engine: str, *, owner: str, grace_ms: int, verified: str = ""
    ) -> bool:
        """Record a successful load. False if the claim was lost meanwhile. `grace_ms` protects the version
        until the waiters' own leases arrive. `verified`: see `Placement.verified`."""
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
        without `reload`, and is evicted first. A cached version is no longer placed. Raises FencedError."""
        ...

    async def touch(
        self, worker: str, touches: Sequence[Touch], *, ttl_ms: int, loads: Loads = NONE, note: Any = None
    ) -> Heard:
        """Update recency and the worker's leases in one batch. Versions that hold no slot there are ignored.

        `loads`: all of the worker's requests now, for the other workers; `note`: what else it tells them, as
        JSON values. Returns theirs; a report expires like a lease."""
        ...

    async def record_move(self, record: str) -> None:
        """Remember what the leader has moved. Only the last KEPT_MOVES are kept."""
        ...

    async def moves(self) -> list[str]:
        """The latest records, newest first."""
        ...

    async def recency(self, engine: str) -> dict[str, int]:
        """Versions placed on `engine`, cached ones too → age in ms since last use, most recent first."""
        ...

    async def leases(self, engine: str) -> dict[str, int]:
        """Versions of `engine` → requests in flight under live leases, over all workers. A grace period
        counts as one, as does a worker of an earlier Florin, which reports no count."""
        ...

    async def use(self, engines: Sequence[str]) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """`recency` and `leases` of each of these engines, in one round trip."""
        ...
