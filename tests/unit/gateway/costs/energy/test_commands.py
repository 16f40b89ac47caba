"""florin cost energy and power: what they ask, print, and how they end."""

from __future__ import annotations

import json

PATH = "/finance/v1/energy"
SUMS = {"gpu_hours": "14.00", "kwh": "4.56", "kg_co2e": "0.228"}
NONE = {"gpu_hours": "0.00", "kwh": "0.00", "kg_co2e": "0.00"}
POWER = {
    "gpu_type": "H100", "watts": "700.00", "idle_watts": "120.00", "valid_from": "1970-01-01T00:00:00Z",
    "source": "us", "recorded_at": "x",
}  # fmt: skip
GRID = {
    "region": None, "grams_per_kwh": "56.00", "pue": "1.20", "valid_from": "1970-01-01T00:00:00Z",
    "source": "them", "recorded_at": "x",
}  # fmt: skip


def test_energy_by_tenant_with_the_rest_and_the_whole(fake):
    body = {
        "from": "x", "to": "y", "by": ["tenant", "gpu_type"], "rows": [{"tenant": "acme", "gpu_type": "H100", **SUMS}],
        "retry_waste": NONE, "headroom": NONE, "startup": NONE, "idle": {**SUMS, "kg_co2e": None}, "whole": SUMS,
        "missing_power": ["L40"], "missing_grid": [""], "complete": True,
    }  # fmt: skip
    fake.answer("GET", f"{PATH}?by=tenant%2Cgpu_type&month=2026-10", body)
    done = fake.florin("cost", "energy", "--by", "tenant,gpu_type", "--month", "2026-10")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert lines[1] == ["acme", "H100", "14.000", "4.560", "0.228"]
    assert lines[2:] == [["idle", "14.000", "4.560", "-"], ["total", "14.000", "4.560", "0.228"]]
    assert "No power of L40" in done.stderr
    assert "engines without a region" in done.stderr
    script = fake.florin("cost", "energy", "--by", "tenant,gpu_type", "--month", "2026-10", "--json")
    assert json.loads(script.stdout) == body
    assert "Incomplete" not in done.stderr
    fake.answer("GET", f"{PATH}?by=tenant%2Cgpu_type&month=2026-10", {**body, "complete": False})
    assert (
        "Incomplete" in fake.florin("cost", "energy", "--by", "tenant,gpu_type", "--month", "2026-10").stderr
    )
    assert fake.florin("cost", "energy", "--month", "2026-10", "--from", "2026-10-01").exit_code == 2


def test_power_is_stated(fake):
    fake.answer("PUT", f"{PATH}/power", {**POWER, "changed": False})
    done = fake.florin(
        "cost",
        "power",
        "set",
        "--gpu-type",
        "H100",
        "--watts",
        "700",
        "--idle-watts",
        "120",
        "--source",
        "us",
    )
    assert done.stdout == "H100 draws 700 W at work and 120 W idle, from 1970-01-01T00:00:00Z on.\n"
    assert "Nothing changed" in done.stderr
    [(_, _, asked)] = fake.asked
    assert asked == {
        "gpu_type": "H100",
        "watts": "700",
        "idle_watts": "120",
        "source": "us",
    }


def test_a_grid_is_stated(fake):
    fake.answer("PUT", f"{PATH}/grid", {**GRID, "changed": True})
    done = fake.florin(
        "cost", "power", "set-grid", "--grams-per-kwh", "56", "--pue", "1.2", "--source", "them"
    )
    assert "56 g CO2e per kWh, PUE 1.2" in done.stdout
    [(_, _, asked)] = fake.asked
    assert asked == {"grams_per_kwh": "56", "pue": "1.2", "source": "them"}


def test_what_is_stated_is_listed(fake):
    fake.answer("GET", f"{PATH}/figures", {"power": [POWER], "grid": [GRID]})
    done = fake.florin("cost", "power", "list")
    assert "700" in done.stdout
    assert "all others" in done.stdout
    fake.answer("GET", f"{PATH}/figures", {"power": [], "grid": []})
    assert "Nothing is stated yet" in fake.florin("cost", "power", "list").stderr
