"""Add, promote, roll back, pin, retire, release and remove adapters and their versions.

`Registrar` decides and commits. This module does what comes before and after: it loads versions before
callers are sent to them, and unloads versions that can no longer be called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from adapters.errors import EngineError, NoEngineError, NotFoundError
from adapters.model import Adapter, AdapterName, ServingStatus, Version, dump
from adapters.progress import Progress
from adapters.registry.changes import Registered
from adapters.registry.registration import Upload
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote, Change
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, catch_up, change
from gateway.routing.prewarming import Prewarmed

_UNLOAD_SECONDS = 5.0


async def add(
    state: State,
    name: AdapterName,
    source: str | Upload,
    *,
    base_model: str | None = None,
    assume_base: bool = False,
    digest: str | None = None,
    actor: str,
    progress: Progress,
) -> Registered:
    """Register an adapter or a new version of one. The first version goes live at once. Raises as
    `Registrar.add_adapter`, but FlorinError for the artifact disk."""
    try:
        done = await state.registrar.add_adapter(
            name,
            source,
            base_model=base_model,
            assume_base=assume_base,
            digest=digest,
            actor=actor,
            progress=progress,
        )
    except OSError as error:
        raise FlorinError(
            "artifacts_unavailable", f"The version's files cannot be stored: {error}."
        ) from error
    await catch_up(state)
    return done


async def promote(
    state: State, name: AdapterName, number: int, *, weight: int = 100, wait: bool = True, actor: str
) -> tuple[Adapter, Prewarmed | None]:
    """Make a version live, or a canary with a `weight` below 100. With `wait`, load it first. Raises as
    `Prewarmer.warm` and `Registrar.promote`, and then changes nothing."""
    warmed = None
    if wait:
        version = state.registrar.loadable_version(name, number)
        live = state.catalog.versions.get(f"{name}@v{find(state, name).live}")
        try:
            warmed = await state.warmer.warm(version, like=live, share=weight)
        except NoEngineError as error:
            raise NoEngineError(
                f"{error} Nothing has changed: make room for it there, or promote it without loading it "
                "first (--no-wait; `wait: false`)."
            ) from error
    adapter = await state.registrar.promote(name, number, weight=weight, actor=actor)
    await catch_up(state)
    return adapter, warmed


async def rollback(state: State, name: AdapterName, *, actor: str) -> Adapter:
    """End the canary; without one, return to the previous live version. It takes effect at once, and the
    version is loaded afterwards if necessary. Raises as `Registrar.rollback`."""
    before = find(state, name)
    adapter = await state.registrar.rollback(name, actor=actor)
    await catch_up(state)
    live = state.catalog.versions.get(f"{name}@v{adapter.live}")
    if live:
        state.warmer.warm_later(live, like=state.catalog.versions.get(f"{name}@v{before.live}"))
    return adapter


async def pin(state: State, name: AdapterName, *, pinned: bool, actor: str) -> Adapter:
    """Protect the live version and the canary from eviction, or stop. Raises NotFoundError."""
    adapter = await state.registrar.pin(name, pinned, actor=actor)
    await catch_up(state)
    return adapter


async def retire(state: State, name: AdapterName, number: int, *, actor: str) -> Version:
    """Make a version uncallable, and unload it from the engines. Raises as `Registrar.retire`."""
    retired = await state.registrar.retire(name, number, actor=actor)
    await _take_off(state, [retired])
    return retired


async def release(state: State, name: AdapterName, version: str, *, actor: str) -> tuple[Version, bool]:
    """Serve a quarantined or failed version (`v2`) again. Returns False if it was neither. Raises
    NotFoundError."""

    def plan(reading: RegistryReading) -> Proposal[tuple[Version, bool]]:
        found = reading.catalog.versions.get(f"{name}@{version}")
        if found is None:
            raise NotFoundError(f"There is no version {version} of adapter {str(name)!r}.")
        status = reading.catalog.serving_statuses.get(found.engine_name)
        if status is None:
            return Proposal([], (found, False))
        released, changes = _release(reading, found, status)
        details = {"state": status.state, "code": status.code, "reason": status.reason}
        note = AuditNote(actor, "adapter.release", str(name), version, details)
        return Proposal(changes, (released, True), note)

    done = await change(state, plan)
    await catch_up(state)
    return done


async def remove(state: State, name: AdapterName, *, actor: str) -> bool:
    """Remove an adapter with all its versions, and unload them. Returns False if there was none."""
    try:
        versions = await state.registrar.remove(name, actor=actor)
    except NotFoundError:
        return False
    await _take_off(state, versions)
    return True


def find(state: State, name: AdapterName) -> Adapter:
    """The adapter in this worker's view. Raises NotFoundError."""
    adapter = state.catalog.adapters.get(str(name))
    if adapter is None:
        raise NotFoundError(f"There is no adapter {str(name)!r}.")
    return adapter


def _release(
    reading: RegistryReading, version: Version, status: ServingStatus
) -> tuple[Version, list[Change]]:
    name = version.engine_name
    changes = [reading.deletion("serving_status", name, dump(status))]
    if status.state != "quarantined":
        return version, changes
    trusted = replace(version, trusted=True)
    changes.append(reading.change("version", version.id, dump(trusted), dump(version)))
    changes.append(Change("fingerprint", name, None))
    return trusted, changes


async def _take_off(state: State, versions: Sequence[Version]) -> None:
    await catch_up(state)
    await asyncio.gather(
        *(_unload(state, v, e) for v in versions for e in state.residency.where(v.engine_name))
    )


async def _unload(state: State, version: Version, engine_name: str) -> None:
    """If the engine does not answer, the reconciler unloads the version later."""
    engine = state.catalog.engines.get(engine_name)
    if engine is not None:
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(_UNLOAD_SECONDS):
                await state.control.unload(engine, version.engine_name)
    await state.store.unplace(engine_name, version.engine_name)
