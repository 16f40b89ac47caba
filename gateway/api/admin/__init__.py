"""/admin/v1/…: the API for operators; some routes are also for tenants' own administrators (`Managed`) or for
engine hosts (`Host`). One module per noun: its routes parse, call `gateway.operations`, and return what
`florin … --json` prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin import (
    account,
    adapter_registration,
    adapters,
    artifacts,
    audit,
    base_models,
    batches,
    calibrations,
    declarative,
    doctor,
    draining,
    engine_agents,
    engine_registration,
    engines,
    enrolment,
    evaluations,
    event_streams,
    gateways,
    keys,
    placement,
    registry,
    settings,
    tenants,
    trials,
    uploads,
)

router = APIRouter(prefix="/admin/v1")
for noun in (
    tenants,
    keys,
    account,
    enrolment,
    adapter_registration,
    artifacts,
    uploads,
    adapters,
    evaluations,
    trials,
    engines,
    draining,
    engine_registration,
    engine_agents,
    base_models,
    placement,
    calibrations,
    batches,
    audit,
    event_streams,
    doctor,
    gateways,
    declarative,
    registry,
    settings,
):
    router.include_router(noun.router)
