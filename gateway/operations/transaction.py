"""Changes of the registry that several may make at once: planned on a reading, committed, planned again on a
conflict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from adapters.errors import ConflictError
from adapters.registry.catalog import Catalog
from adapters.store.protocol import AuditNote, Change
from gateway.operations.state import State
from gateway.tenants.directory import Directory

T = TypeVar("T")


Json = dict[str, Any]


Audit = AuditNote | Callable[[T], AuditNote | None] | None
"""What is noted of a change: a note, or one made from its answer (so that it can say what was before), or
nothing, for what changes nothing that an audit asks about."""


_CATCH_UP_SECONDS = 2.0
_ATTEMPTS = 16
"""Of N changes of one object at once, each round of attempts lets at least one through."""


@dataclass(frozen=True, slots=True)
class RegistryReading:
    """The registry as read for one attempt: this worker's views first, after a conflict a fresh snapshot."""

    catalog: Catalog
    directory: Directory
    documents: dict[str, dict[str, str]] | None = None

    def change(self, kind: str, key: str, new: str, old: str | None) -> Change:
        """The change from `old`, the text as this worker would write it, or None: nothing. In a snapshot the
        stored text counts, which an older Florin may have written otherwise."""
        if old is not None and self.documents is not None:
            old = self.documents[kind][key]
        return Change(kind, key, new, expect=old)


async def change(
    state: State,
    plan: Callable[[RegistryReading], Awaitable[tuple[list[Change], T]]],
    *,
    audit: Audit[T],
) -> T:
    """Commit what `plan` says, with its note, and return its answer, once this worker's views know it. If
    somebody else's change came first, plan again on a fresh reading. Nothing to change: nothing is noted.
    Raises what `plan` raises, ConflictError, StoreUnavailableError."""
    reading = RegistryReading(state.catalog, state.directory)
    for _ in range(_ATTEMPTS):
        changes, answer = await plan(reading)
        if not changes:
            return answer
        try:
            seq = await state.store.commit(changes, audit=audit(answer) if callable(audit) else audit)
        except ConflictError:
            reading = await _fresh(state)
        else:
            await state.follower.wait_for(seq, _CATCH_UP_SECONDS)
            return answer
    raise ConflictError("Many others are changing this at once: try again.")


async def catch_up(state: State) -> None:
    """Wait until this worker knows all that was committed before: the last write may have been answered by
    another worker. Raises StoreUnavailableError."""
    await state.follower.wait_for(await state.store.commit(()), _CATCH_UP_SECONDS)


def differences(old: Any, new: Any) -> Json:
    """What an audit note tells of two dataclass instances of one type: {field: {"old": …, "new": …}} for each
    field that differs. Without an `old` one: {field: {"new": …}}. Never give it what holds a secret."""
    after = asdict(new)
    if old is None:
        return {name: {"new": value} for name, value in after.items()}
    before = asdict(old)
    return {name: {"old": before[name], "new": v} for name, v in after.items() if before[name] != v}


async def _fresh(state: State) -> RegistryReading:
    documents = (await state.store.snapshot()).documents
    catalog, directory = Catalog(), Directory()
    catalog.load(documents)
    directory.load(documents)
    return RegistryReading(catalog, directory, documents)
