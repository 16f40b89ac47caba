"""Register, promote, roll back, pin, retire, release and remove adapters and their versions.

`Registrar` decides and commits. This module does what comes before and after: it checks whether the caller
may, loads versions before callers are sent to them, and unloads versions that can no longer be called.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

from adapters.errors import EngineError, NoEngineError, NotFoundError, QuotaExceededError
from adapters.model import Adapter, AdapterName, ServingStatus, Version, dump, fingerprint_ids
from adapters.placement.requirements import shown
from adapters.progress import Progress
from adapters.registry.changes.live_version import UNGUARDED, CanaryTerms
from adapters.registry.changes.settings import plan_cost_centre, plan_scale
from adapters.registry.changes.versions import Registered
from adapters.registry.ingest import NO_TERMS, Upload
from adapters.registry.transaction import Proposal
from adapters.sources.public_uri import scheme_of
from adapters.store.protocol.registry import AuditNote, Change
from adapters.wording import counted
from gateway.costs.manual_lines.store import end_fees
from gateway.errors import FlorinError
from gateway.evaluations import operations as evaluations
from gateway.fleet.adapters.operations import quotas
from gateway.fleet.adapters.operations.uploads import largest, turn
from gateway.operations.authorization import Authority, no_adapter
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, catch_up, change
from gateway.routing.prewarming import Prewarmed
from gateway.tenants.directory import Tenant
from gateway.tenants.engine_requirements import engine_requirements

log = logging.getLogger(__name__)

_UNLOAD_SECONDS = 5.0


async def register(
    state: State,
    name: AdapterName,
    source: str | Upload,
    *,
    base_model: str | None = None,
    assume_base: bool = False,
    unverified_shapes: bool = False,
    digest: str | None = None,
    authority: Authority,
    progress: Progress,
) -> Registered:
    """Register an adapter or a new version of one. The first version goes live at once. Call `begin_fetch` or
    `check_upload` before. Raises as `Registrar.register`, QuotaExceededError, and FlorinError for the
    artifact disk."""
    authority.check_adapter(name)
    authority.check_vouching(unverified_shapes=unverified_shapes)
    owner = _owner(state, authority)
    waiting = nullcontext() if owner is None else turn(state.intake.tenant_registrations, authority)
    try:
        async with waiting:
            done = await state.registrar.register(
                name,
                source,
                base_model=base_model,
                assume_base=assume_base,
                unverified_shapes=unverified_shapes,
                digest=digest,
                terms=NO_TERMS if owner is None else quotas.registration_terms(state, owner),
                actor=authority.actor,
                progress=progress,
            )
    except OSError as error:
        raise disk_failure("The version's files", error, authority) from error
    await catch_up(state)
    return done


async def begin_fetch(state: State, authority: Authority, name: AdapterName, source: str) -> None:
    """Check that the caller may register this adapter from a source that the gateway fetches, and count it.
    Raises NotFoundError, QuotaExceededError, FlorinError."""
    if _check_name(state, authority, name) is not None:
        _check_kind(scheme_of(source) or "file", state.settings.tenant_source_kinds - {"private"})
    await count_upload(state, authority)


async def check_upload(
    state: State, authority: Authority, name: AdapterName, base_model: str | None, size: int
) -> int:
    """Refuse an upload of `size` bytes (0: unknown) that could not be registered, before gigabytes are sent
    in vain. Returns the most bytes that it may have. Raises NotFoundError, RejectedError,
    QuotaExceededError."""
    owner = _check_name(state, authority, name)
    await state.registrar.check(name, base_model)
    quota = None if owner is None else owner.quotas.bytes
    most = largest(state, quota)
    if quota is not None and size > most:
        raise QuotaExceededError(
            f"The upload has {size:,} bytes, and the tenant's versions may have at most {quota:,} in all. "
            "Ask the operator for more."
        )
    return most


async def count_upload(state: State, authority: Authority) -> None:
    """Count an upload, or a fetch, that begins now. Raises FlorinError if the hour's are used up."""
    if authority.tenant is not None:
        await quotas.count_upload(state, authority.tenant)


def _check_kind(kind: str, allowed: Collection[str]) -> None:
    if kind not in allowed:
        others = f", or use a URL of {' or '.join(sorted(allowed))}" if allowed else ""
        message = f"This key cannot register from a source of kind {kind[:40]!r}. Upload the files{others}."
        raise FlorinError("source_not_allowed", message, param="source")


def _check_name(state: State, authority: Authority, name: AdapterName) -> Tenant | None:
    """The tenant whose quotas apply. Raises NotFoundError, QuotaExceededError."""
    authority.check_adapter(name)
    owner = _owner(state, authority)
    if owner is not None:
        quotas.check_name(state, owner, str(name))
    return owner


def _owner(state: State, authority: Authority) -> Tenant | None:
    """The tenant whose quotas apply; None for an operator."""
    if authority.tenant is None:
        return None
    owner = state.directory.tenants.get(authority.tenant)
    if owner is None:
        raise NotFoundError(f"There is no tenant {authority.tenant!r}.")
    return owner


async def promote(
    state: State,
    name: AdapterName,
    number: int,
    *,
    weight: int = 100,
    terms: CanaryTerms = UNGUARDED,
    wait: bool = True,
    require_eval: bool = False,
    require_eval_of: str = "",
    authority: Authority,
) -> tuple[Adapter, Prewarmed | None]:
    """Make a version live, or a canary with a `weight` below 100. With `wait`, load it first. Raises as
    `Prewarmer.warm`, `Registrar.promote` and `evaluations.check_promotion`, and then changes nothing."""
    authority.check_adapter(name)
    await evaluations.check_promotion(state, name, number, required=require_eval, data_sha256=require_eval_of)
    warmed = None
    if wait:
        version = state.registrar.loadable_version(name, number)
        live = state.catalog.versions.get(f"{name}@v{find(state, name, authority).live}")
        try:
            warmed = await state.prewarmer.warm(version, like=live, share=weight)
        except NoEngineError as error:
            if authority.tenant is None:
                reason, remedy = str(error), "make room for it there"
            else:  # the reasons name engines
                reason, remedy = f"No engine can hold {version.id} now.", "try again later, ask the operator"
            raise NoEngineError(
                f"{reason} Nothing has changed: {remedy}, or promote it without loading it first "
                "(--no-wait; `wait: false`)."
            ) from error
    adapter = await state.registrar.promote(name, number, weight=weight, terms=terms, actor=authority.actor)
    await catch_up(state)
    return adapter, warmed


async def rollback(state: State, name: AdapterName, *, authority: Authority) -> Adapter:
    """End the canary; without one, return to the previous live version. It takes effect at once, and the
    version is loaded afterwards if necessary. Raises as `Registrar.rollback`."""
    before = find(state, name, authority)
    adapter = await state.registrar.rollback(name, actor=authority.actor)
    await catch_up(state)
    live = state.catalog.versions.get(f"{name}@v{adapter.live}")
    if live:
        state.prewarmer.warm_later(live, like=state.catalog.versions.get(f"{name}@v{before.live}"))
    return adapter


async def pin(state: State, name: AdapterName, *, pinned: bool, actor: str) -> Adapter:
    """Protect the live version and the canary from eviction, or stop. Raises NotFoundError."""
    adapter = await state.registrar.pin(name, pinned, actor=actor)
    await catch_up(state)
    return adapter


async def scale(state: State, name: AdapterName, bounds: Mapping[str, int | None], *, actor: str) -> Adapter:
    """Set `min_replicas` and `max_replicas`; what is left out stays. Raises NotFoundError, and ConflictError
    if the minimum would exceed the maximum."""
    adapter = await state.registrar.change(name, actor, lambda reading: plan_scale(reading, name, bounds))
    await catch_up(state)
    return adapter


async def set_cost_centre(
    state: State, name: AdapterName, label: str | None, *, authority: Authority
) -> Adapter:
    """Label its tenant's usage of it in reports; None removes the label. Raises NotFoundError."""
    authority.check_adapter(name)
    plan = partial(plan_cost_centre, name=name, label=label or "")
    adapter = await state.registrar.change(name, authority.actor, plan)
    await catch_up(state)
    return adapter


def unreachable(state: State, adapter: Adapter) -> list[str]:
    """Why the adapter cannot have its minimum of replicas; empty: it can."""
    version = state.catalog.versions.get(f"{adapter.name}@v{adapter.live}")
    if version is None:
        return []
    requires = engine_requirements(state.directory, state.catalog, version.tenant)
    able = [
        engine
        for engine in state.catalog.fleet(version.base_model)
        if engine.fits(version) and engine.meets(requires)
    ]
    if len(able) >= adapter.min_replicas:
        return []
    which = f" with {shown(requires)}" if shown(requires) else ""
    engines = f"{counted(len(able), 'engine')}{which}"
    return [f"{adapter.name} can be on {engines}, fewer than the {adapter.min_replicas} wanted"]


async def retire(state: State, name: AdapterName, number: int, *, authority: Authority) -> Version:
    """Make a version uncallable, and unload it from the engines. Raises as `Registrar.retire`."""
    authority.check_adapter(name)
    retired = await state.registrar.retire(name, number, actor=authority.actor)
    await _take_off(state, [retired])
    return retired


async def release(state: State, name: AdapterName, version: str, *, actor: str) -> tuple[Version, bool]:
    """Serve a quarantined or failed version (`v2`) again. Returns False if it was neither. Raises
    NotFoundError."""

    def plan(reading: RegistryReading) -> Proposal[tuple[Version, bool]]:
        stored_version = reading.catalog.versions.get(f"{name}@{version}")
        if stored_version is None:
            raise NotFoundError(f"There is no version {version} of adapter {str(name)!r}.")
        status = reading.catalog.serving_statuses.get(stored_version.engine_name)
        if status is None:
            return Proposal([], (stored_version, False))
        released, changes = _release(reading, stored_version, status)
        details = {"state": status.state, "code": status.code, "reason": status.reason}
        note = AuditNote(actor, "adapter.release", str(name), version, details)
        return Proposal(changes, (released, True), note)

    done = await change(state, plan)
    await catch_up(state)
    return done


async def remove(state: State, name: AdapterName, *, authority: Authority) -> bool:
    """Remove an adapter with all its versions, unload them, and end its fees. Returns False if there was
    none. Raises LedgerUnavailableError; removing it again then ends its fees."""
    try:
        authority.check_adapter(name)
        versions = await state.registrar.remove(name, actor=authority.actor)
    except NotFoundError:
        there = False
    else:
        there = True
        await _take_off(state, versions)
    if authority.sees(str(name)):
        now, actor = state.clock.now(), authority.actor
        await asyncio.to_thread(end_fees, state.ledger, name.tenant, now=now, actor=actor, adapter=str(name))
    return there


def find(state: State, name: AdapterName, authority: Authority) -> Adapter:
    """The adapter in this worker's view. Raises NotFoundError."""
    authority.check_adapter(name)
    adapter = state.catalog.adapters.get(str(name))
    if adapter is None:
        raise no_adapter(name)
    return adapter


def disk_failure(what: str, error: OSError, authority: Authority) -> FlorinError:
    """Without the path, which is logged; the sizes are only for operators."""
    log.error("Artifact store: %s", error)
    reason = error.strerror if authority.tenant is None or error.errno is None else os.strerror(error.errno)
    return FlorinError("artifacts_unavailable", f"{what} cannot be stored: {reason or 'disk error'}.")


def _release(
    reading: RegistryReading, version: Version, status: ServingStatus
) -> tuple[Version, list[Change]]:
    name = version.engine_name
    changes = [reading.deletion("serving_status", name, dump(status))]
    if status.state != "quarantined":
        return version, changes
    trusted = replace(version, trusted=True)
    changes.append(reading.change("version", version.id, dump(trusted), dump(version)))
    changes += [Change("fingerprint", id_, None) for id_ in fingerprint_ids(name)]
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
                await state.engine_client.unload(engine, version.engine_name)
    await state.store.unplace(engine_name, version.engine_name)
