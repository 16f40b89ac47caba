"""A manual line to record."""

from __future__ import annotations

from typing import Any

from gateway.costs.manual_lines.lines import ManualLine
from gateway.units import DAY
from tests.unit.gateway.costs.selling.sold import NOVEMBER

AT = NOVEMBER + 4 * DAY


def line(kind: str = "credit", cents: int = 4000, tenant: str = "acme", **more: Any) -> ManualLine:
    fields = {
        "id": 0, "kind": kind, "tenant": tenant, "adapter": "", "cents": cents, "reason": "Outage", "begins": "",
        "ends": "", "prorated": False, "fee": None, "month": "", "requested_at": AT, "requested_by": "key:a",
    }  # fmt: skip  # one name a line says no more
    return ManualLine(**fields | more)
