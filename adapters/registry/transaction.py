"""Optimistic changes of the registry: planned from a reading, and committed only if that still holds.

A plan is pure. Its changes expect the documents that it was planned from, so whoever changes one of them
first makes the commit fail, and the plan runs again on a fresh snapshot. Of two changes of one object at
once, both succeed, one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from adapters.errors import AdaptersError, ConflictError
from adapters.registry.catalog import Catalog, Documents
from adapters.store.protocol import AuditNote, Change, Store

T = TypeVar("T")

_ATTEMPTS = 32
"""Of N changes of one object at once, each round of attempts lets at least one through."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The registry as read for one attempt."""

    catalog: Catalog
    documents: Documents | None
    """The stored texts of a snapshot; None: this is the worker's view, which may be stale."""

    def stored(self, kind: str, id_: str, text: str) -> str:
        """A document as the store should hold it, given as this worker would write it. In a snapshot the
        stored text counts, which an older Florin may have written otherwise."""
        return text if self.documents is None else self.documents[kind][id_]

    def change(self, kind: str, id_: str, new: str, old: str | None) -> Change:
        """From `old`, the text as this worker would write it; None: there must be none."""
        return Change(kind, id_, new, expect=None if old is None else self.stored(kind, id_, old))

    def proof(self, kind: str, id_: str, text: str) -> Change:
        """No change, but the commit fails unless the document is still the one that was read."""
        text = self.stored(kind, id_, text)
        return Change(kind, id_, text, expect=text)

    def deletion(self, kind: str, id_: str, text: str) -> Change:
        return Change(kind, id_, None, expect=self.stored(kind, id_, text))


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Proposal(Generic[T]):
    """What a plan makes of a reading."""

    changes: list[Change]
    """Empty: everything is as it should be, so nothing is committed and nothing noted."""
    answer: T
    note: AuditNote | None = None
    """What the audit says of the change. It may say what was there before, because it comes from the same
    reading."""


async def transact(
    store: Store, plan: Callable[[R], Proposal[T]], *, view: R, fresh: Callable[[], Awaitable[R]]
) -> tuple[T, int | None]:
    """Commit what `plan` makes of `view`; if that was stale, or the plan refuses it, of a `fresh` reading.
    Returns the plan's answer, and the sequence number of the commit (None: there was nothing to change).
    Raises what `plan` raises, ConflictError, StoreUnavailableError."""
    reading = view
    for _ in range(_ATTEMPTS):
        try:
            proposal = plan(reading)
        except AdaptersError:
            if reading.documents is not None:
                raise
        else:
            if not proposal.changes:
                return proposal.answer, None
            try:
                return proposal.answer, await store.commit(proposal.changes, audit=proposal.note)
            except ConflictError:
                pass
        reading = await fresh()
    raise ConflictError("Many others are changing this at once: try again.")
