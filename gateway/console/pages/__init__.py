"""The pages: one module per subject, each with its ROUTES. Their order here is that of the navigation."""

from __future__ import annotations

from typing import Final

from gateway.console.pages import fleet, money
from gateway.console.visit import Entry, Route

ROUTES: Final[tuple[Route, ...]] = (*fleet.ROUTES, *money.ROUTES)
ENTRIES: Final[tuple[Entry, ...]] = (*fleet.ENTRIES, *money.ENTRIES)
"""The navigation. A role's first entry is its first page."""
