"""The part of the Redis store that handles the registry as a whole: its position and its restoration."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio.client import Pipeline

from adapters.model import Placement, SlotState, dump, load
from adapters.store.continuity import Position, loss, mark_after
from adapters.store.protocol.registry import DOCUMENT_KINDS, Snapshot

RESTORED_LEASE_MS: Final = 10_000
"""How long resident versions are assumed to be in use, until the workers have reported their leases."""
POSITION_REPLIES: Final = 4
"""Number of replies to `ask_position`."""


class Keys:
    """Key names. `key` is the store's function that joins parts."""

    def __init__(self, key: Callable[..., str]) -> None:
        self.key = key
        self.feed = key("feed")
        self.epoch = key("epoch")
        self.installation = key("secret", "installation")
        self.position = (self.feed, self.epoch, self.installation)

    def of_engine(self, name: str) -> tuple[str, str, str]:
        return self.key("recency", name), self.key("leases", name), self.key("cached", name)


def ask_position(pipe: Pipeline, keys: Keys, known: Position) -> None:
    """Queue the reads whose POSITION_REPLIES replies `position_of` takes."""
    entry_id = f"{known.seq}-0"
    pipe.get(keys.installation)
    pipe.get(keys.epoch)
    pipe.xrevrange(keys.feed, count=1)
    pipe.xrange(keys.feed, entry_id, entry_id)


def position_of(replies: Sequence[Any], known: Position) -> tuple[Position, str]:
    """The registry's position, and why it does not continue `known` (empty if it does)."""
    installation, epoch, tail, known_entries = replies
    epoch_document = json.loads(epoch) if epoch else {}
    last, fields = tail[0] if tail else ("0-0", {})
    position = Position(
        installation or "",
        epoch_document.get("epoch", 0),
        int(last.partition("-")[0]),
        fields.get("mark", ""),
        tuple(epoch_document.get("former", ())),
    )
    return position, loss(known, position, known_entries[0][1].get("mark", "") if known_entries else None)


def write_epoch(pipe: Pipeline, keys: Keys, current: Position, begun: Position) -> None:
    text = json.dumps({"epoch": begun.epoch, "former": begun.former})
    mark = mark_after(current.mark, "epoch", begun.installation, text)
    pipe.set(keys.installation, begun.installation)
    pipe.set(keys.epoch, text)
    event: dict[Any, Any] = {"kind": "epoch", "id": begun.installation, "data": text, "mark": mark}
    pipe.xadd(keys.feed, event, id=f"{begun.seq}-0")


def replace_all(
    pipe: Pipeline, keys: Keys, left: Snapshot, restored: dict[str, dict[str, str]], now: int
) -> None:
    """Replace everything in `left`. Resident adapters are assumed to be still resident."""
    documents = dict(restored)
    placed = [load(Placement, text) for text in documents.pop("placement", {}).values()]
    engines = {id_.partition("/")[0] for id_ in left.documents["placement"]}
    for engine in engines | left.documents["engine"].keys() | {p.engine for p in placed}:
        pipe.delete(*keys.of_engine(engine))
    pipe.delete(*map(keys.key, ("feed", "placement", "until", "where")))
    for kind in DOCUMENT_KINDS:
        pipe.delete(keys.key("doc", kind))
        if documents.get(kind):
            pipe.hset(keys.key("doc", kind), mapping=dict[Any, Any](documents[kind]))
    where: dict[str, list[str]] = {}
    for placement in placed:
        if placement.state is SlotState.LOADING:
            continue
        state = SlotState.RESIDENT if placement.state is SlotState.LEAVING else placement.state
        recency, leases, cached = keys.of_engine(placement.engine)
        kept = Placement(placement.engine, placement.version, state)
        pipe.hset(keys.key("placement"), kept.id, dump(kept))
        pipe.zadd(cached if state is SlotState.CACHED else recency, {kept.version: now})
        if state is SlotState.RESIDENT:
            pipe.hset(leases, f"{kept.version}|restored", str(now + RESTORED_LEASE_MS))
        where.setdefault(kept.version, []).append(kept.engine)
    for version, names in where.items():
        pipe.hset(keys.key("where"), version, " ".join(names))
