"""Money: what each customer cost, months and their closing, prices, budgets."""

from __future__ import annotations

from typing import Final

from gateway.console.pages.money import budgets, costs, months, prices
from gateway.console.visit import ALL, Entry, Route
from gateway.tenants.directory import Role

ROUTES: Final[tuple[Route, ...]] = (*costs.ROUTES, *months.ROUTES, *prices.ROUTES, *budgets.ROUTES)
ENTRIES: Final[tuple[Entry, ...]] = (
    Entry("Money", "/money", ALL, "money", frozenset({Role.FINANCE, Role.AUDITOR})),
)
