"""/admin/v1/…: the API for operators; some routes are also for tenants' own administrators (`Managed`), for
engine hosts (`Host`) or for a controller (`Controlled`). The routes of each room parse, call its operations,
and return what `florin … --json` prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.batches.routes import admin as batches
from gateway.costs.calibration import routes as calibrations
from gateway.declarative import routes as declarative
from gateway.evaluations import routes as evaluations
from gateway.event_streams import routes as event_streams
from gateway.fleet.adapters.routes import adapters, registration, trials
from gateway.fleet.engines.routes import engines, hosts
from gateway.fleet.placement import routes as placement
from gateway.installation import routes as installation
from gateway.installation.audit import routes as audit
from gateway.installation.registry import routes as registry
from gateway.tenants import routes as tenants
from gateway.tenants.keys import routes as keys
from gateway.tenants.people import routes as account

router = APIRouter(prefix="/admin/v1")
for noun in (
    tenants.router,
    tenants.controlled,
    keys.router,
    account.router,
    hosts.enrolments,
    registration.router,
    hosts.files,
    adapters.router,
    adapters.controlled,
    evaluations.router,
    trials.router,
    engines.router,
    engines.controlled,
    hosts.router,
    engines.bases,
    placement.router,
    calibrations.router,
    batches.router,
    audit.router,
    event_streams.router,
    installation.router,
    declarative.router,
    declarative.controlled,
    registry.router,
):
    router.include_router(noun)
