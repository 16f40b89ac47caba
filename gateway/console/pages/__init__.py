"""The pages: one module per subject, each with its ROUTES. Their order here is that of the navigation."""

from __future__ import annotations

from typing import Final

from gateway.console.pages import audit, fleet, health, money, settings, tenants
from gateway.console.visit import Entry, Route

ROUTES: Final[tuple[Route, ...]] = (
    *fleet.ROUTES,
    *tenants.ROUTES,
    *money.ROUTES,
    *health.ROUTES,
    *audit.ROUTES,
    *settings.ROUTES,
)
ENTRIES: Final[tuple[Entry, ...]] = (
    *fleet.ENTRIES,
    *tenants.ENTRIES,
    *money.ENTRIES,
    *health.ENTRIES,
    *audit.ENTRIES,
    *settings.ENTRIES,
)
"""The navigation. A role's first entry is its first page."""
