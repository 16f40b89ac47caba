"""What the admin routes share: who may call them, reading one's own writes, and changes that conflict."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import orjson
from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict

from adapters.catalog import Catalog
from adapters.errors import ConflictError, StoreUnavailableError
from adapters.store import AuditNote, Change
from gateway.api.deps import HostKey, OperatorKey, State, StateDep
from gateway.tenants.directory import Directory

T = TypeVar("T")

Json = dict[str, Any]

Audit = AuditNote | Callable[[T], AuditNote | None] | None
"""What is noted of a change: a note, or one made from its answer (so that it can say what was before), or
nothing, for what changes nothing that an audit asks about."""

_CATCH_UP_SECONDS = 2.0
_ATTEMPTS = 16
"""Of N changes of one object at once, each round of attempts lets at least one through."""


def as_json(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, which can be stored and read again. Raises ValueError."""
    try:
        json.dumps(config, allow_nan=False)
        orjson.dumps(config)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "it holds what JSON does not: NaN, a number beyond 64 bits, or half a letter"
        ) from None
    return config


class Body(BaseModel):
    """A request body: unknown fields are refused, so that a slip is not silently without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Reading:
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
    plan: Callable[[Reading], Awaitable[tuple[list[Change], T]]],
    *,
    audit: Audit[T],
) -> T:
    """Commit what `plan` says, with its note, and return its answer, once this worker's views know it. If
    somebody else's change came first, plan again on a fresh reading. Nothing to change: nothing is noted.
    Raises what `plan` raises, ConflictError, StoreUnavailableError."""
    reading = Reading(state.catalog, state.directory)
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


async def _fresh(state: State) -> Reading:
    documents = (await state.store.snapshot()).documents
    catalog, directory = Catalog(), Directory()
    catalog.load(documents)
    directory.load(documents)
    return Reading(catalog, directory, documents)


async def _operator(request: Request, key: OperatorKey, state: StateDep) -> None:
    del key  # the dependency has checked it
    await _current(request, state)


async def _host(request: Request, key: HostKey, state: StateDep) -> None:
    del key
    await _current(request, state)


async def _current(request: Request, state: State) -> None:
    looking = request.method == "GET"
    if looking and not state.follower.connected:
        return  # what this worker remembers may still be looked at
    try:
        await catch_up(state)
    except StoreUnavailableError:
        if not looking:
            raise


Operator = Depends(_operator)
"""On every router here but the hosts': role operator, and views that are up to date."""
Host = Depends(_host)
"""On what an engine's own host may call, with its key of role engine: the same."""
