"""florin cost adapters: what it asks and prints."""

from __future__ import annotations

import json

PATH = "/finance/v1/adapters?month=2026-10"
SUMS = {
    "requests": 1200, "cost": "663.00", "loads": 4, "load_cost": None, "slot_hours": "744.00",
    "slot_cost": "278.07", "engines": 2,
}  # fmt: skip


def test_adapters_with_their_loads_and_slots(fake):
    rare = {**SUMS, "requests": 3, "adapters": 1, "slot_cost": None}
    body = {
        "currency": "USD", "from": "x", "to": "y", "complete": True,
        "rows": [{"adapter": "acme/support", **SUMS}, {"adapter": "bolt/x", **SUMS}],
        "rare": rare, "total": {**SUMS, "adapters": 2},
    }  # fmt: skip
    fake.answer("GET", PATH, body)
    done = fake.florin("cost", "adapters", "--month", "2026-10", "--limit", "1")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert lines[1] == ["acme/support", "1,200", "663.00", "4", "-", "744.00", "2", "278.07"]
    assert lines[2][:3] == ["1", "rarely", "used"]
    assert lines[3][:2] == ["all", "2"]
    assert "1 more adapter:" in done.stderr
    assert "part of no bill" in done.stderr
    assert "florin calibrate" in done.stderr
    assert json.loads(fake.florin("cost", "adapters", "--month", "2026-10", "--json").stdout) == body
    assert fake.florin("cost", "adapters", "--month", "2026-10", "--from", "2026-10-01").exit_code == 2
