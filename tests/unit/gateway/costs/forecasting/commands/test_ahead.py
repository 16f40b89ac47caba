"""florin cost forecast, budget, anomalies, alerts: what they ask, print, and how they end."""

import pytest

from tests.support.command_cases import Case, check

FORECAST, BUDGETS = "/finance/v1/forecast", "/finance/v1/budgets"
ROW = {
    "tenant": "acme", "priced_by": "rate_card", "so_far": "379.527", "expected": "781.86", "low": "776.56", "high": "787.17",
    "days_known": 15, "method": "weekday", "budget": "750.00", "status": "forecast_over", "used_percent": "50.6",
}  # fmt: skip
WHOLE = {
    "priced_by": "cost", "so_far": "1429.83", "expected": "2956.17", "low": "2949.15", "high": "2963.19", "days_known": 15,
    "method": "weekday", "budget": None, "status": None, "used_percent": None,
}  # fmt: skip
BODY = {
    "month": "2026-10", "currency": "USD", "as_of": "2026-10-16T00:00:00Z", "complete_days": 15, "days": 31,
    "confidence_percent": 80, "policy": "none", "missing_prices": [], "complete": True, "installation": WHOLE,
    "rows": [ROW],
}  # fmt: skip
BUDGET = {
    "tenant": "acme", "first_month": "2026-10", "amount": "750.00", "currency": "USD", "warn_percent": 80,
    "recorded_at": "2026-10-01T00:00:00Z",
}  # fmt: skip
SPIKE = {
    "kind": "adapter", "subject": "acme/support", "tenant": "acme", "day": "2026-10-10", "since": "2026-10-09",
    "priced_by": "rate_card", "cost": "48.00", "habit": "12.00", "ratio": "4.00",
}  # fmt: skip
IDLER = {
    **SPIKE,
    "kind": "engine",
    "subject": "gpu-b\x1b[31m",
    "tenant": None,
    "habit": None,
    "ratio": "0.9583",
}
ANOMALIES = {
    "currency": "USD", "as_of": "x", "factor": "3.00", "idle_percent": "95.00", "complete": True,
    "data": [SPIKE, IDLER],
}  # fmt: skip
UNKNOWN = {**dict.fromkeys(("expected", "low", "high", "budget", "status")), "method": "none"}
OWN = {
    **{name: value for name, value in BODY.items() if name != "installation"},
    "rows": [{**ROW, **UNKNOWN}],
    "complete": False,
}
GONE = {"tenant": "acme", "first_month": "2026-11", "amount": None}
LISTED = {
    "month": "2026-10", "currency": "USD", "as_of": "x", "missing_prices": [], "complete": True,
    "data": [{**BUDGET, **ROW}, {**BUDGET, **WHOLE, "tenant": None, "status": "within"}],
}  # fmt: skip
USED = {
    **{name: ROW[name] for name in ("so_far", "expected", "budget")},
    "month": "2026-10",
    "currency": "USD",
}
ALERTS = [
    {
        "id": "x",
        "raised_at": "2026-10-11T06:00:00Z",
        "delivered_at": None,
        "tenant": "acme",
        "type": kind,
        "data": data,
    }
    for kind, data in (("cost.budget_forecast", USED), ("cost.anomaly", {**SPIKE, "currency": "USD"}))
]
CASES = (
    Case(
        "cost forecast --month 2026-10 --confidence 95 --as-of 2026-10-16",
        {f"GET {FORECAST}?month=2026-10&confidence=95&as_of=2026-10-16": BODY},
        ("acme 379.53 781.86 776.56 787.17 750.00 forecast over charge provisioned GPU cost at list price",),
        ("15 of 31 days are complete", "exclude unused time"),
    ),
    Case(
        "cost forecast", {f"GET {FORECAST}?confidence=80": OWN}, ("acme 379.53 - - - - charge",),
        ("two complete days", "still arriving"), document=OWN,
    ),
    Case(
        "cost budget set 750 --tenant acme", {f"PUT {BUDGETS}": {**BUDGET, "changed": True}},
        ("acme may cost 750.00 USD a month from 2026-10 on; warning at 80 %.",),
        sends={"tenant": "acme", "amount": "750"},
    ),
    *(
        Case(
            "cost budget remove --tenant acme", {f"PUT {BUDGETS}": {**GONE, "changed": changed}}, says, notes,
            sends={"tenant": "acme", "amount": None},
        )
        for changed, says, notes in (
            (True, ("acme has no budget from 2026-11 on.",), ()), (False, (), ("There was no such budget.",)),
        )
    ),
    Case(
        "cost budget list --month 2026-10", {f"GET {BUDGETS}?month=2026-10": LISTED},
        ("acme 750.00 379.53 50.6 % 781.86 forecast over 2026-10 charge The installation",),
    ),
    Case("cost budget list", {f"GET {BUDGETS}": {**LISTED, "data": []}}, notes=("florin cost budget set",)),
    Case(
        "cost anomalies --factor 2", {"GET /finance/v1/anomalies?factor=2&idle_percent=95": ANOMALIES},
        ("adapter acme/support 2026-10-09 2026-10-10 48.00 12.00 4.0 times, by rate card engine gpu-b", "95.8% idle"),
    ),
    Case(
        "cost anomalies", {"GET /finance/v1/anomalies?factor=3&idle_percent=95": {**ANOMALIES, "data": []}},
        notes=("Nothing costs 3 times its habit",),
    ),
    Case(
        "cost alerts", {"GET /finance/v1/alerts?limit=20": {"data": ALERTS}},
        ("2026-10: 379.53 of 750.00 USD used, 781.86 expected", "adapter acme/support: 48.00 USD on 2026-10-10, 4.0 times"),
    ),
    Case("cost alerts", {"GET /finance/v1/alerts?limit=20": {"data": []}}, notes=("No alert",)),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)
    assert "\x1b[31m" not in fake.florin(*case.words.split()).stdout
