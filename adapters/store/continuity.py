"""Whether a registry is the continuation of the one that a worker knows, or has lost something.

Each event of the feed carries a mark: the digest of its content and of the mark before it. Two registries
whose events of one number have one mark have the same history up to there. So a worker that keeps the number
and the mark of the last event it has heard can tell a change from a loss: a server that came back empty, a
replica that was promoted without the last writes, a backup, another installation's.

An operator who puts a registry back, or accepts it as it is, begins an epoch: that is taken over by all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PASSING: Final = frozenset({"placement", "death"})
"""Kinds whose loss harms nobody: engines are asked what they hold, and deaths are forgotten soon."""

Documents = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a registry stands."""

    installation: str = ""
    """Its id; empty before anybody has asked for it, or where nothing is left."""
    epoch: int = 0
    seq: int = 0
    """Of the last event; 0 before the first."""
    mark: str = ""
    """Of that event; empty for one that an older Florin has written."""
    former: tuple[str, ...] = ()
    """Installations whose registries this one has replaced, by an operator's decision."""


def mark_after(mark: str, kind: str, id_: str, data: str | None) -> str:
    """The mark of an event, from the one before it. lua/prelude.lua has the same."""
    text = "\0".join((mark, kind, id_, "-" if data is None else f"+{data}"))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]


def loss(known: Position, found: Position, at: str | None) -> str:
    """Why `found` cannot be what became of `known`, in a sentence; empty: it can. `at`: the mark of event
    `known.seq` as the server has it; None: it has no such event (any more)."""
    ours = not known.installation or known.installation in (found.installation, *found.former)
    if ours and found.epoch > known.epoch:
        return ""
    if not known.installation and not known.seq:
        return ""
    if known.installation and not found.installation:
        return "Redis is empty, or has lost what says whose registry it holds."
    if not ours:
        return f"Redis holds the registry of another installation ({found.installation})."
    if found.epoch < known.epoch:
        return "Redis holds the registry as it was before it was last restored or accepted."
    if found.seq < known.seq:
        return (
            f"Redis has lost changes: its last one is number {found.seq}, this worker knows {known.seq} of "
            "them."
        )
    if at and known.mark and at != known.mark:
        return f"Redis has lost changes: its number {known.seq} is not the one that this worker knows."
    return ""


def next_epoch(known: Position, found: Position, *, restore: bool) -> Position:
    """Where the registry stands after an operator's decision to put back what is `known`, or to go on with
    what is `found`; its mark is the store's to make. The number leaves a gap in the feed, so that every
    follower looks again."""
    installation = known.installation if restore or not found.installation else found.installation
    former = {*known.former, *found.former, known.installation, found.installation} - {"", installation}
    return Position(
        installation,
        max(known.epoch, found.epoch) + 1,
        max(known.seq, found.seq) + 2,
        former=tuple(sorted(former)),
    )


def same(known: Documents, found: Documents) -> bool:
    """Whether only what passes by itself has been lost."""
    kinds = (known.keys() | found.keys()) - PASSING
    return all(known.get(kind, {}) == found.get(kind, {}) for kind in kinds)


@dataclass(frozen=True, slots=True)
class RegistryDifference:
    """Of one kind of document, ids."""

    missing: tuple[str, ...]
    """Known, and not found."""
    changed: tuple[str, ...]
    added: tuple[str, ...]
    """Found, and not known."""


def differences(known: Documents, found: Documents) -> dict[str, RegistryDifference]:
    """By kind, where there is any."""
    told = {}
    for kind in sorted((known.keys() | found.keys()) - PASSING):
        before, now = known.get(kind, {}), found.get(kind, {})
        changed = tuple(sorted(i for i in before.keys() & now.keys() if before[i] != now[i]))
        told[kind] = RegistryDifference(
            tuple(sorted(before.keys() - now.keys())), changed, tuple(sorted(now.keys() - before.keys()))
        )
    return {kind: d for kind, d in told.items() if d.missing or d.changed or d.added}
