"""Detects whether a registry continues the one that a worker knows, or has lost changes.

Each event of the feed carries a mark: a digest of its content and the previous mark (a hash chain). If two
registries have the same mark at the same event number, their histories agree up to that event. A worker
remembers the number and mark of the last event it received, and so can tell a change from a loss: a server
that came back empty, a replica promoted without the last writes, a restored backup, another installation's
registry.

An operator who restores a registry, or accepts it as it is, begins a new epoch, which all workers adopt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PASSING: Final = frozenset({"placement", "death", "self_service"})
"""Kinds whose loss is harmless: engines are asked what they hold, and the others expire soon."""

Documents = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Position:
    """A registry's identity and the last event of its history."""

    installation: str = ""
    """The installation's id; empty if not yet assigned or if the server is empty."""
    epoch: int = 0
    seq: int = 0
    """Sequence number of the last event; 0 before the first."""
    mark: str = ""
    """Mark of that event; empty if an older Florin wrote it."""
    former: tuple[str, ...] = ()
    """Installations whose registries an operator replaced with this one."""


def mark_after(mark: str, kind: str, id_: str, data: str | None) -> str:
    """The mark of an event, given the previous mark. lua/prelude.lua computes the same."""
    text = "\0".join((mark, kind, id_, "-" if data is None else f"+{data}"))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]


def loss(known: Position, current: Position, mark: str | None) -> str:
    """Why `current` cannot be a continuation of `known`, as a sentence; empty if it can. `mark`: the server's
    mark of event `known.seq`, or None if it does not have that event."""
    ours = not known.installation or known.installation in (current.installation, *current.former)
    if ours and current.epoch > known.epoch:
        return ""
    if not known.installation and not known.seq:
        return ""
    if known.installation and not current.installation:
        return "Redis is empty, or has lost the id of its installation."
    if not ours:
        return f"Redis holds the registry of another installation ({current.installation})."
    if current.epoch < known.epoch:
        return "Redis holds an older registry, from before the last restore or accept."
    if current.seq < known.seq:
        return (
            f"Redis has lost changes: its last one is number {current.seq}, but this worker knows "
            f"{known.seq}."
        )
    if mark and known.mark and mark != known.mark:
        return f"Redis has lost changes: its change {known.seq} differs from the one that this worker knows."
    return ""


def next_epoch(known: Position, current: Position, *, restore: bool) -> Position:
    """The position after an operator restores `known` or accepts `current`. The store computes its mark. The
    sequence number leaves a gap in the feed, which forces every follower to take a new snapshot."""
    installation = known.installation if restore or not current.installation else current.installation
    former = {*known.former, *current.former, known.installation, current.installation} - {"", installation}
    return Position(
        installation,
        max(known.epoch, current.epoch) + 1,
        max(known.seq, current.seq) + 2,
        former=tuple(sorted(former)),
    )


def same(known: Documents, current: Documents) -> bool:
    """Whether only ephemeral documents were lost."""
    kinds = (known.keys() | current.keys()) - PASSING
    return all(known.get(kind, {}) == current.get(kind, {}) for kind in kinds)


@dataclass(frozen=True, slots=True)
class RegistryDifference:
    """Ids of one kind of document."""

    missing: tuple[str, ...]
    """Known but not found."""
    changed: tuple[str, ...]
    added: tuple[str, ...]
    """Found but not known."""


def differences(known: Documents, current: Documents) -> dict[str, RegistryDifference]:
    """The differences by kind; kinds without any are left out."""
    by_kind = {}
    for kind in sorted((known.keys() | current.keys()) - PASSING):
        before, now = known.get(kind, {}), current.get(kind, {})
        changed = tuple(sorted(i for i in before.keys() & now.keys() if before[i] != now[i]))
        by_kind[kind] = RegistryDifference(
            tuple(sorted(before.keys() - now.keys())), changed, tuple(sorted(now.keys() - before.keys()))
        )
    return {kind: d for kind, d in by_kind.items() if d.missing or d.changed or d.added}
