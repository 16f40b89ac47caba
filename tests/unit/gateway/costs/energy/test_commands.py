"""florin cost energy and power: what they ask, print, and how they end."""

import pytest

from tests.support.command_cases import Case, check

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
BODY = {
    "from": "x", "to": "y", "by": ["tenant", "gpu_type"], "rows": [{"tenant": "acme", "gpu_type": "H100", **SUMS}],
    "retry_waste": NONE, "headroom": NONE, "startup": NONE, "idle": {**SUMS, "kg_co2e": None}, "provisioned": SUMS,
    "missing_power": ["L40"], "missing_grid": [""], "complete": False,
}  # fmt: skip
CASES = (
    Case(
        "cost energy --by tenant,gpu_type --month 2026-10", {f"GET {PATH}?by=tenant%2Cgpu_type&month=2026-10": BODY},
        ("acme H100 14.000 4.560 0.228 idle 14.000 4.560 - total 14.000 4.560 0.228",),
        ("No power of L40", "engines without a region", "Incomplete"), document=BODY,
    ),
    Case("cost energy --month 2026-10 --from 2026-10-01", code=2),
    Case(
        "cost power set --gpu-type H100 --watts 700 --idle-watts 120 --source us", {f"PUT {PATH}/power": {**POWER, "changed": False}},
        ("H100 draws 700 W at work and 120 W idle, from 1970-01-01T00:00:00Z on.",), ("Nothing changed",),
        sends={"gpu_type": "H100", "watts": "700", "idle_watts": "120", "source": "us"},
    ),
    Case(
        "cost power set-grid --grams-per-kwh 56 --pue 1.2 --source them", {f"PUT {PATH}/grid": {**GRID, "changed": True}},
        ("56 g CO2e per kWh, PUE 1.2",), sends={"grams_per_kwh": "56", "pue": "1.2", "source": "them"},
    ),
    Case("cost power list", {f"GET {PATH}/figures": {"power": [POWER], "grid": [GRID]}}, ("700", "all others")),
    Case("cost power list", {f"GET {PATH}/figures": {"power": [], "grid": []}}, notes=("Nothing is stated yet",)),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)
