"""/admin/v1/engines/{name}/trust"""

from __future__ import annotations

from fastapi import APIRouter

from adapters.errors import NotFoundError
from adapters.model import Fingerprint, dump
from adapters.placement.fingerprint import fingerprint
from adapters.registry.serving_status import SUSPECT
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations.transaction import Json, RegistryReading, change

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])


@router.post("/{name}/trust")
async def trust(name: str, state: StateDep, actor: Actor) -> Json:
    """Say that the engine computes its base model as it should, for example after a change of the model, of
    its quantization or of vLLM. Its answer to the fixed prompts is taken, now, as the one to which the base
    model is held on every engine; the fleet's versions are held to what they answer after their next loads;
    and no engine of the fleet is suspect any more. Quarantines stay."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name!r}.")
    answer = await state.control.probe(engine, engine.base_model)
    first = fingerprint(answer, engine=engine.name, gpu_type=engine.gpu_type, taken=state.clock.now())

    async def plan(reading: RegistryReading) -> tuple[list[Change], int]:
        return _trust(reading, engine.base_model, first)

    note = AuditNote(actor, "engine.trust", name, details={"base_model": engine.base_model})
    forgotten = await change(state, plan, audit=note)
    return {"engine": name, "base": engine.base_model, "fingerprints_forgotten": forgotten}


def _trust(reading: RegistryReading, base: str, first: Fingerprint) -> tuple[list[Change], int]:
    catalog = reading.catalog
    versions = [v.engine_name for v in catalog.versions.values() if v.base_model == base]
    known = [name for name in versions if name in catalog.fingerprints]
    suspects = [e.name for e in catalog.fleet(base) if _is_suspect(reading, e.name)]
    changes = [
        Change("fingerprint", base, dump(first)),
        *(Change("fingerprint", version, None) for version in known),
        *(Change("serving_status", engine, None) for engine in suspects),
    ]
    return changes, len(known)


def _is_suspect(reading: RegistryReading, engine: str) -> bool:
    serving_status = reading.catalog.serving_statuses.get(engine)
    return serving_status is not None and serving_status.code == SUSPECT
