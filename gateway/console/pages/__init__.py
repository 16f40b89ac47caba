"""The pages: one module per subject, each with its ROUTES. Their order here is that of the navigation."""

from __future__ import annotations

from typing import Final

from gateway.console.pages import (
    adapters,
    audit,
    fleet,
    health,
    money,
    requests,
    search,
    settings,
    tenants,
)
from gateway.console.visit import Entry, Route

_PAGES: Final = (fleet, adapters, tenants, requests, money, health, audit, settings)
ROUTES: Final[tuple[Route, ...]] = (
    *(route for page in _PAGES for route in page.ROUTES),
    *search.ROUTES,
)
ENTRIES: Final[tuple[Entry, ...]] = tuple(entry for page in _PAGES for entry in page.ENTRIES)
"""The navigation. A role's first entry is its first page."""
