"""Adapters: all of them, one with its versions and its canary, trying it, evaluating it, registering it."""

from __future__ import annotations

from typing import Final

from gateway.console.pages.adapters import evaluating, listing, one, registering, release, settings, trying
from gateway.console.visit import Entry, Route

ROUTES: Final[tuple[Route, ...]] = (
    *registering.ROUTES,  # before the pages whose pattern would match its paths
    *listing.ROUTES,
    *release.ROUTES,
    *evaluating.ROUTES,
    *settings.ROUTES,
    *trying.ROUTES,
    *one.ROUTES,
)
ENTRIES: Final[tuple[Entry, ...]] = listing.ENTRIES
