"""Requests: which version on which engine answered, why there, what it used and cost."""

from __future__ import annotations

from gateway.console.pages.requests import one, recent
from gateway.console.visit import ALL, Entry

ROUTES = (*recent.ROUTES, *one.ROUTES)
ENTRIES = (Entry("Requests", "/requests", ALL, "request"),)
