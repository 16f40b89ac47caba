"""What every change of an adapter consists of: documents to write, each with what it must replace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from adapters.model import Adapter, AdapterName, Version, dump
from adapters.registry.change_context import ChangeContext
from adapters.store.protocol.registry import AuditNote, Change

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedChange(Generic[T]):
    """The changes to commit, the result to return after the commit, and the audit details."""

    changes: list[Change]
    answer: T
    action: str = ""
    """If empty, nothing changes, and the commit only asserts that this still holds."""
    version: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def note(self, actor: str, name: AdapterName) -> AuditNote | None:
        if not self.action:
            return None
        version = "" if self.version is None else f"v{self.version}"
        return AuditNote(actor, self.action, str(name), version, self.details)


def no_change(reading: ChangeContext, adapter: Adapter) -> PlannedChange[Adapter]:
    """The adapter is as wanted; the commit only asserts that it still is."""
    return PlannedChange([change_of(reading, adapter, adapter)], adapter)


def change_and_pins(reading: ChangeContext, old: Adapter, new: Adapter) -> list[Change]:
    """The change of the adapter's document, and of the pins of its versions."""
    return [change_of(reading, old, new), *pins(reading, old, new)]


def change_of(reading: ChangeContext, old: Adapter | None, new: Adapter) -> Change:
    return Change("adapter", new.name, dump(new), expect=None if old is None else reading.expected(old))


def pins(
    reading: ChangeContext, old: Adapter | None, new: Adapter, added: Version | None = None
) -> list[Change]:
    """Pins follow the versions that the bare name resolves to: live and canary."""
    before = {old.live, old.canary} if old and old.pinned else set()
    after = {new.live, new.canary} if new.pinned else set()
    changes = []
    for number in sorted(n for n in before ^ after if n is not None):
        fresh = added is not None and added.number == number
        version = added if fresh and added else reading.version(new, number)
        data = f'{{"version":"{version.id}"}}' if number in after else None
        changes.append(Change("pin", version.engine_name, data))
    return changes


def still_callable(reading: ChangeContext, version: Version) -> list[Change]:
    """Expectations that conflict with a concurrent retirement or serving status, neither of which changes the
    adapter's own document."""
    return [reading.unchanged(version), Change("serving_status", version.engine_name, None, expect=None)]


def label(number: int | None) -> str | None:
    """`v3`."""
    return None if number is None else f"v{number}"
