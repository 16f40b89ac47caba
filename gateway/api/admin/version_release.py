"""/admin/v1/adapters/{tenant}/{name}/versions/{version}/release"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import StringConstraints

from adapters.errors import NotFoundError
from adapters.model import AdapterName, ServingStatus, Version, dump
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.adapter_json import version_json
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations.transaction import Json, RegistryReading, catch_up, change

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]


@router.post("/{tenant}/{name}/versions/{version}/release")
async def release(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Serve a version that was quarantined or failed: somebody has looked at the evidence. From now on it may
    answer like the base model, and what it answers after its next load is what it is held to. Without a
    serving status nothing changes."""
    adapter = AdapterName.parse(f"{tenant}/{name}")

    async def plan(reading: RegistryReading) -> tuple[list[Change], tuple[Version, ServingStatus | None]]:
        found = reading.catalog.versions.get(f"{adapter}@{version}")
        if found is None:
            raise NotFoundError(f"There is no version {version} of adapter {str(adapter)!r}.")
        return _release(reading, found)

    def note(answer: tuple[Version, ServingStatus | None]) -> AuditNote:
        serving_status = answer[1]
        details = (
            {"state": serving_status.state, "code": serving_status.code, "reason": serving_status.reason}
            if serving_status
            else {}
        )
        return AuditNote(actor, "adapter.release", str(adapter), version, details)

    released, serving_status = await change(state, plan, audit=note)
    await catch_up(state)
    shown = version_json(state, state.catalog.adapters[str(adapter)], released)
    return {"adapter": str(adapter), "released": serving_status is not None, **shown}


def _release(
    reading: RegistryReading, version: Version
) -> tuple[list[Change], tuple[Version, ServingStatus | None]]:
    name = version.engine_name
    serving_status = reading.catalog.serving_statuses.get(name)
    if serving_status is None:
        return [], (version, None)
    stored = dump(serving_status) if reading.documents is None else reading.documents["serving_status"][name]
    changes = [Change("serving_status", name, None, expect=stored)]
    if serving_status.state == "quarantined":
        trusted = replace(version, trusted=True)
        changes.append(reading.change("version", version.id, dump(trusted), dump(version)))
        changes.append(Change("fingerprint", name, None))
        version = trusted
    return changes, (version, serving_status)
