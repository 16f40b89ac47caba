"""/admin/v1/…: the operator's API, role operator; a few routes (`Host`) are for the engines' hosts, too. One
module a noun, each thin: it reads the views, writes the store, and returns what `florin … --json` prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin import (
    adapters,
    adding,
    artifacts,
    audit,
    bases,
    calibrations,
    doctor,
    engines,
    enrolment,
    hosts,
    keys,
    placement,
    registering,
    registry,
    release,
    tenants,
    trust,
    uploads,
)
from gateway.api.admin.declarative import routes as declarative

router = APIRouter(prefix="/admin/v1")
for noun in (
    tenants,
    keys,
    enrolment,
    adding,
    artifacts,
    uploads,
    adapters,
    release,
    engines,
    registering,
    trust,
    hosts,
    bases,
    placement,
    calibrations,
    audit,
    doctor,
    declarative,
    registry,
):
    router.include_router(noun.router)
