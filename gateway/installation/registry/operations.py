"""Detect that Redis has lost the registry, and carry out the operator's decision to rewrite or accept it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapters.errors import ConflictError
from adapters.store.continuity import Position, next_epoch
from adapters.store.local_snapshot import LocalSnapshot
from adapters.store.protocol.registry import AuditNote, Snapshot
from gateway.operations.state import State

_HEARD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RegistryComparison:
    known: LocalSnapshot
    """What this gateway knows."""
    redis_position: Position
    """Where Redis stands."""
    lost: str
    """Why Redis must have lost part of the registry; empty if it has not."""
    left: Snapshot
    """What Redis has."""

    @property
    def state_found(self) -> str:
        """Identifies the state of Redis; differs after any change."""
        position = self.redis_position
        return f"{position.installation}:{position.epoch}:{position.seq}:{position.mark}"


async def compare(state: State) -> RegistryComparison:
    """Raises StoreUnavailableError."""
    known = await state.snapshot_writer.newest()
    position, lost = await state.store.inspect(known.position)
    if not (lost or state.follower.lost):
        return RegistryComparison(known, position, "", known.snapshot)
    left = await state.store.snapshot_unchecked()
    return RegistryComparison(known, left.position, lost, left)


async def decide(
    state: State, action: Literal["registry.rewrite", "registry.accept"], *, agreed: str, actor: str
) -> RegistryComparison:
    """Write what this gateway knows, or accept what Redis has. `agreed` is the `state_found` that the
    operator saw. Raises ConflictError if Redis has changed since, or has lost nothing."""
    now = await compare(state)
    if not now.lost:
        raise ConflictError("Redis holds the registry that this gateway knows: there is nothing to decide.")
    if now.state_found != agreed:
        raise ConflictError("Redis holds another registry now: florin registry show.")
    rewriting = action == "registry.rewrite"
    begun = next_epoch(now.known.position, now.redis_position, restore=rewriting)
    details = {"epoch": begun.epoch, "why": now.lost}
    note = AuditNote(actor, action, "registry", details=details)
    await state.store.begin_epoch(now.redis_position, begun, now.known.restored(entire=rewriting), note=note)
    if not await state.follower.wait_for_epoch(begun.epoch, _HEARD_SECONDS):
        raise ConflictError("Done, but this worker does not have the change yet: florin registry show.")
    return await compare(state)
