"""/admin/v1/adapters/{tenant}/{name}/versions/{version}/release"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import StringConstraints

from adapters.errors import NotFoundError
from adapters.model import AdapterName, Verdict, Version, dump
from adapters.store import AuditNote, Change
from gateway.api.admin.adapter_json import version_json
from gateway.api.admin.common import Json, Operator, Reading, catch_up, change
from gateway.api.deps import Actor, StateDep

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]


@router.post("/{tenant}/{name}/versions/{version}/release")
async def release(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Serve a version that was quarantined or failed: somebody has looked at the evidence. From now on it may
    answer like the base model, and what it answers after its next load is what it is held to. Without a
    verdict nothing changes."""
    adapter = AdapterName.parse(f"{tenant}/{name}")

    async def plan(reading: Reading) -> tuple[list[Change], tuple[Version, Verdict | None]]:
        found = reading.catalog.versions.get(f"{adapter}@{version}")
        if found is None:
            raise NotFoundError(f"There is no version {version} of adapter {str(adapter)!r}.")
        return _release(reading, found)

    def note(answer: tuple[Version, Verdict | None]) -> AuditNote:
        verdict = answer[1]
        details = {"state": verdict.state, "code": verdict.code, "reason": verdict.reason} if verdict else {}
        return AuditNote(actor, "adapter.release", str(adapter), version, details)

    released, verdict = await change(state, plan, audit=note)
    await catch_up(state)
    shown = version_json(state, state.catalog.adapters[str(adapter)], released)
    return {"adapter": str(adapter), "released": verdict is not None, **shown}


def _release(reading: Reading, version: Version) -> tuple[list[Change], tuple[Version, Verdict | None]]:
    name = version.engine_name
    verdict = reading.catalog.verdicts.get(name)
    if verdict is None:
        return [], (version, None)
    stored = dump(verdict) if reading.documents is None else reading.documents["verdict"][name]
    changes = [Change("verdict", name, None, expect=stored)]
    if verdict.state == "quarantined":
        trusted = replace(version, trusted=True)
        changes.append(reading.change("version", version.id, dump(trusted), dump(version)))
        changes.append(Change("fingerprint", name, None))
        version = trusted
    return changes, (version, verdict)
