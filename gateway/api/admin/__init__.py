"""/admin/v1/…: the operator's API, role operator; a few routes (`Host`) are for the engines' hosts, too. One
module a noun, each thin: it parses, calls `gateway.operations`, and returns what `florin … --json` prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin import (
    adapter_registration,
    adapters,
    artifacts,
    audit,
    base_models,
    calibrations,
    declarative,
    doctor,
    engine_agents,
    engine_registration,
    engines,
    enrolment,
    keys,
    placement,
    registry,
    tenants,
    uploads,
)

router = APIRouter(prefix="/admin/v1")
for noun in (
    tenants,
    keys,
    enrolment,
    adapter_registration,
    artifacts,
    uploads,
    adapters,
    engines,
    engine_registration,
    engine_agents,
    base_models,
    placement,
    calibrations,
    audit,
    doctor,
    declarative,
    registry,
):
    router.include_router(noun.router)
