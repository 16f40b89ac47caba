"""Tenants, their keys, and a tenant's own account."""

from __future__ import annotations

from gateway.console.pages.tenants import keys, page
from gateway.console.visit import CUSTOMERS, MANAGERS, OPERATORS, Entry

ROUTES = (*page.ROUTES, *keys.ROUTES)
ENTRIES = (
    Entry("Tenants", "/tenants", OPERATORS, "tenant"),
    Entry("Account", "/account", CUSTOMERS, "tenant"),
    Entry("Keys", "/keys", MANAGERS, "key"),
)
