"""The fleet: engines, what is placed on them, and what an operator does with them."""

from __future__ import annotations

from gateway.console.pages.fleet import adding, drain, engine, overview
from gateway.console.visit import OPERATORS, Entry

ROUTES = (*overview.ROUTES, *engine.ROUTES, *drain.ROUTES, *adding.ROUTES)
ENTRIES = (Entry("Fleet", "/fleet", OPERATORS, "fleet"),)
