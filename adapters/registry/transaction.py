"""Optimistic transactions on the registry: plan from a reading, and commit only if it is still current.

A plan is pure. Its changes expect the documents that it was planned from, so a concurrent change to one of
them makes the commit fail, and the plan runs again on a fresh snapshot. Two concurrent changes to one object
both succeed, one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from adapters.errors import AdaptersError, ConflictError
from adapters.registry.catalog import Catalog, Documents
from adapters.store.protocol.registry import AuditNote, Change, RegistryStore

T = TypeVar("T")

_ATTEMPTS = 32
"""Each round of attempts lets at least one of N concurrent changes to an object through."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The registry as read for one attempt."""

    catalog: Catalog
    documents: Documents | None
    """The stored texts of a snapshot; None if this is the worker's view, which may be stale."""

    def stored(self, kind: str, id_: str, text: str) -> str:
        """The text that the store should hold for a document, given the text that this worker would write.
        In a snapshot the stored text wins, because an older Florin may have written it differently."""
        return text if self.documents is None else self.documents[kind][id_]

    def change(self, kind: str, id_: str, new: str, old: str | None) -> Change:
        """Replace `old`, the text as this worker would write it. None: the document must not exist."""
        return Change(kind, id_, new, expect=None if old is None else self.stored(kind, id_, old))

    def proof(self, kind: str, id_: str, text: str) -> Change:
        """Change nothing, but let the commit fail unless the document is still the one that was read."""
        text = self.stored(kind, id_, text)
        return Change(kind, id_, text, expect=text)

    def deletion(self, kind: str, id_: str, text: str) -> Change:
        return Change(kind, id_, None, expect=self.stored(kind, id_, text))


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Proposal(Generic[T]):
    """What to commit, what to answer once that has succeeded, and what to write to the audit log."""

    changes: list[Change]
    """If empty, nothing is committed and no note is written."""
    answer: T
    note: AuditNote | None = None
    """Made from the same reading as the changes, so it can say what was there before."""


async def transact(
    store: RegistryStore, plan: Callable[[R], Proposal[T]], *, view: R, fresh: Callable[[], Awaitable[R]]
) -> tuple[T, int | None]:
    """Commit what `plan` proposes for `view`. If the view is stale or `plan` refuses it, plan again from a
    `fresh` reading. Returns the plan's answer and the sequence number of the commit, or None if there was
    nothing to change. Raises what `plan` raises, ConflictError, StoreUnavailableError."""
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
    raise ConflictError("Too many concurrent changes; try again.")
