"""Cordon, drain, remove and trust engines. `engine_registration` adds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from adapters.errors import InUseError, NotFoundError
from adapters.model import Engine, Fingerprint, dump, fingerprint_id
from adapters.placement.fingerprint import fingerprint
from adapters.registry.serving_status import SUSPECT
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.errors import FlorinError
from gateway.fleet.engines.operations.agents import living
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences


async def set_state(
    state: State, name: str, new_state: Literal["active", "cordoned", "draining"], *, actor: str
) -> Engine:
    """Idempotent. Ends a drain in progress. Raises NotFoundError."""

    def plan(reading: RegistryReading) -> Proposal[Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        new = replace(old, state=new_state, drain=None)
        changes = [reading.change("engine", name, dump(new), dump(old))] if new != old else []
        return Proposal(changes, new, AuditNote(actor, "engine.state", name, details=differences(old, new)))

    return await change(state, plan)


async def remove(state: State, name: str, *, actor: str) -> bool:
    """Remove the engine and its placement; False if there was none. Raises InUseError while its agent is
    alive."""
    heartbeat = (await living(state)).get(name)
    if heartbeat is not None:
        raise InUseError(
            f"The agent at {heartbeat.agent} runs engine {name} and would register it again: "
            "stop `florin engine run` there first."
        )

    def plan(reading: RegistryReading) -> Proposal[bool]:
        known = name in reading.catalog.engines
        changes = [Change("engine", name, None)] if known else []
        return Proposal(changes, known, AuditNote(actor, "engine.remove", name))

    known = await change(state, plan)
    if known:
        await state.store.unplace(name)
    return known


async def restart(state: State, name: str, *, actor: str) -> None:
    """Let the engine's agent restart it, as a new process and epoch. Raises NotFoundError, FlorinError (it
    has no agent), EngineError."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name[:80]!r}.")
    if not engine.agent:
        raise FlorinError(
            "invalid_value",
            f"Engine {name} was not started by `florin engine run`, so Florin cannot restart it: restart it "
            "yourself.",
        )
    await state.engine_client.restart(engine)
    await state.store.commit((), audit=AuditNote(actor, "engine.restart", name))


async def trust(state: State, name: str, *, actor: str) -> tuple[str, int]:
    """Make the engine's answer to the fixed prompts the reference for its base model. Returns the base model
    and the number of versions whose fingerprints were deleted. Raises NotFoundError, EngineError."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name!r}.")
    base = engine.base_model
    answer = await state.engine_client.probe(engine, None)
    first = fingerprint(answer, engine=name, gpu_type=engine.gpu_type, taken=state.clock.now())
    note = AuditNote(actor, "engine.trust", name, details={"base_model": base})
    return base, await change(state, lambda reading: _trust(reading, engine, first, note))


def _trust(reading: RegistryReading, by: Engine, first: Fingerprint, note: AuditNote) -> Proposal[int]:
    catalog, base, task = reading.catalog, by.base_model, by.tasks[0]
    models = [v.engine_name for v in catalog.versions.values() if v.base_model == base]
    versions = [fingerprint_id(model, task) for model in models]
    known = [name for name in versions if name in catalog.fingerprints]
    suspects = [e.name for e in catalog.fleet(base) if _is_suspect(reading, e.name)]
    changes = [
        Change("fingerprint", fingerprint_id(base, task), dump(first)),
        *(Change("fingerprint", version, None) for version in known),
        *(Change("serving_status", engine, None) for engine in suspects),
    ]
    return Proposal(changes, len(known), note)


def _is_suspect(reading: RegistryReading, engine: str) -> bool:
    serving_status = reading.catalog.serving_statuses.get(engine)
    return serving_status is not None and serving_status.code == SUSPECT
