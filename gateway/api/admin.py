"""/admin/v1/…: the API for operators; some routes are also for tenants' own administrators (`Managed`) or for
engine hosts (`Host`). The routes of each room parse, call its operations, and return what `florin … --json`
prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.batches.routes import admin as batches
from gateway.costs.calibration import routes as calibrations
from gateway.declarative import routes as declarative
from gateway.evaluations import routes as evaluations
from gateway.event_streams import routes as event_streams
from gateway.fleet.adapters.routes import adapters, artifacts, base_models, trials, uploads
from gateway.fleet.adapters.routes import registration as adapter_registration
from gateway.fleet.engines.routes import agents as engine_agents
from gateway.fleet.engines.routes import draining, engines, enrolment
from gateway.fleet.engines.routes import registration as engine_registration
from gateway.fleet.placement import routes as placement
from gateway.installation.audit import routes as audit
from gateway.installation.doctor import routes as doctor
from gateway.installation.gateways import routes as gateways
from gateway.installation.registry import routes as registry
from gateway.installation.settings import routes as settings
from gateway.tenants import routes as tenants
from gateway.tenants.keys import routes as keys
from gateway.tenants.people import routes as account

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
