"""How operations change the registry: `change` commits what a pure plan proposes, then waits until this
worker's views include it, so that callers read their own writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeVar

from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Proposal, Reading, transact
from gateway.operations.state import State
from gateway.tenants.directory import Directory

T = TypeVar("T")

Json = dict[str, Any]

_CATCH_UP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RegistryReading(Reading):
    """A reading with tenants and keys."""

    directory: Directory


async def change(state: State, plan: Callable[[RegistryReading], Proposal[T]]) -> T:
    """Commit what `plan` proposes, with its note, and return its answer once this worker's views include it.
    `plan` runs again on a fresh snapshot after a conflict, or if it refused a view that may be stale. Raises
    what `plan` raises, ConflictError, StoreUnavailableError."""

    async def fresh() -> RegistryReading:
        documents = (await state.store.snapshot()).documents
        catalog, directory = Catalog(), Directory()
        catalog.load(documents)
        directory.load(documents)
        return RegistryReading(catalog, documents, directory)

    view = RegistryReading(state.catalog, None, state.directory)
    answer, seq = await transact(state.store, plan, view=view, fresh=fresh)
    if seq is not None:
        await state.follower.wait_for(seq, _CATCH_UP_SECONDS)
    return answer


async def catch_up(state: State) -> None:
    """Wait until this worker's views include everything committed so far, also by other workers. Raises
    StoreUnavailableError."""
    await state.follower.wait_for(await state.store.commit(()), _CATCH_UP_SECONDS)


def differences(old: Any, new: Any) -> Json:
    """The fields in which two dataclass instances differ, for an audit note: {field: {"old": …, "new": …}},
    with dotted names for the fields of nested instances; or {field: {"new": …}} for every field that has a
    value if `old` is None. Never pass an object that holds a secret."""
    after = _fields(new)
    if old is None:
        return {name: {"new": value} for name, value in after.items() if value is not None}
    before = _fields(old)
    names = dict.fromkeys((*after, *before))
    return {
        name: {"old": before.get(name), "new": after.get(name)}
        for name in names
        if before.get(name) != after.get(name)
    }


def _fields(instance: Any) -> Json:
    flat: Json = {}
    for name, value in asdict(instance).items():
        if isinstance(value, dict) and is_dataclass(getattr(instance, name)):
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    return flat
