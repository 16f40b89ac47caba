"""/finance/v1/…: usage and costs. Requires the finance or operator role; a tenant's key sees only its own
rows. One thin module per resource; whichever has a `router` is part of it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fastapi import APIRouter

router = APIRouter(prefix="/finance/v1", tags=["finance"])
for submodule in iter_modules(__path__):
    module = import_module(f"{__name__}.{submodule.name}")
    if hasattr(module, "router"):
        router.include_router(module.router)
