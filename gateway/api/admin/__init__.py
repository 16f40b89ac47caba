"""/admin/v1/…: the operator's API, role operator. One module a noun, each thin: it reads the views, writes
the store, and returns what `florin … --json` prints."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin import adapters, calibrations, engines, keys, placement, tenants

router = APIRouter(prefix="/admin/v1")
for noun in (tenants, keys, adapters, engines, placement, calibrations):
    router.include_router(noun.router)
