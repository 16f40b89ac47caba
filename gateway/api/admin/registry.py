"""/admin/v1/registry: whether Redis still holds the registry that the workers know, and an operator's
decision where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from adapters.errors import ConflictError
from adapters.store.continuity import Position, RegistryDifference, differences, next_epoch
from adapters.store.local_snapshot import LocalSnapshot
from adapters.store.protocol import AuditNote, Snapshot
from gateway.api.dependencies import Actor, OperatorKey, StateDep
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(prefix="/registry", tags=["registry"])

_HEARD_SECONDS = 5.0
_SHOWN = 10
"""Ids of each kind."""


class RegistryDecision(StrictBody):
    found: str = Field(
        max_length=256, description="`found` as it was shown: 409 if Redis holds another registry by now."
    )


@dataclass(frozen=True, slots=True)
class _Look:
    known: LocalSnapshot
    found: Position
    lost: str
    left: Snapshot


@router.get("")
async def show_registry(state: StateDep, _: OperatorKey) -> Json:
    """What this gateway knows, what Redis has, and what `restore` would bring back (`missing`, `changed`) and
    drop (`added`)."""
    return _json(await _look(state))


@router.post("/restore")
async def restore(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Json:
    """Put what this gateway knows in the place of what Redis has."""
    return await _decide(state, body.found, "registry.restore", actor)


@router.post("/accept")
async def accept(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Json:
    """Go on with what Redis has: what this gateway knows beyond it is given up."""
    return await _decide(state, body.found, "registry.accept", actor)


async def _decide(
    state: State, agreed: str, action: Literal["registry.restore", "registry.accept"], actor: str
) -> Json:
    look = await _look(state)
    if not look.lost:
        raise ConflictError("Redis holds the registry that this gateway knows: there is nothing to decide.")
    if _name(look.found) != agreed:
        raise ConflictError("Redis holds another registry by now: florin registry show.")
    restoring = action == "registry.restore"
    begun = next_epoch(look.known.position, look.found, restore=restoring)
    note = AuditNote(actor, action, "registry", details={"epoch": begun.epoch, "why": look.lost})
    await state.store.begin_epoch(look.found, begun, look.known.restored(whole=restoring), note=note)
    if not await state.follower.wait_for_epoch(begun.epoch, _HEARD_SECONDS):
        raise ConflictError("It is done, but this worker has not heard of it yet: florin registry show.")
    return _json(await _look(state))


async def _look(state: State) -> _Look:
    """Raises StoreUnavailableError."""
    known = await state.keeper.newest()
    found, lost = await state.store.inspect(known.position)
    if not (lost or state.follower.lost):
        return _Look(known, found, "", known.snapshot)
    left = await state.store.snapshot_unchecked()
    return _Look(known, left.position, lost, left)


def _json(look: _Look) -> Json:
    told = differences(look.known.documents, look.left.documents)
    return {
        "status": "regressed" if look.lost else "ok",
        "reason": look.lost,
        "installation": look.known.position.installation,
        "known": _counts(look.known.documents),
        "left": _counts(look.left.documents),
        "differences": {kind: _difference(one) for kind, one in told.items()},
        "found": _name(look.found),
    }


def _counts(documents: dict[str, dict[str, str]]) -> dict[str, int]:
    return {kind: len(documents.get(kind, {})) for kind in ("tenant", "key", "adapter", "version", "engine")}


def _difference(one: RegistryDifference) -> Json:
    return {
        what: {"count": len(ids), "first": ids[:_SHOWN]}
        for what, ids in (("missing", one.missing), ("changed", one.changed), ("added", one.added))
        if ids
    }


def _name(position: Position) -> str:
    """One text for a state of Redis, which is another after any change."""
    return f"{position.installation}:{position.epoch}:{position.seq}:{position.mark}"
