"""The look ahead, as a step of maintenance: raises alerts, and gives the metrics their series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.costs.closing.preview import settlement_now
from gateway.costs.credits.store import read_grants
from gateway.costs.forecasting.alerts import alerts_of, credit_alerts, raise_alerts
from gateway.costs.forecasting.anomalies import Anomaly
from gateway.costs.forecasting.look_ahead import LookAhead, find_anomalies, look_ahead
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.costs.periods import iso
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.computed_metrics import LABEL_CAP, Series
from gateway.units import FEMTO

AHEAD = "ahead"
"""Name of the snapshot that keeps the series between two looks."""
EVERY = 600_000_000
"""Microseconds between two looks: they read the last 28 days, which change little in ten minutes."""


def ahead(ledger: Ledger, now: int) -> Mapping[str, Series]:
    """The series of this look, or of the last if it was just now. Raises LedgerUnavailableError."""
    kept = read_snapshot(ledger, AHEAD, after=now - EVERY)
    if kept is not None:
        return dict(kept)
    with ledger.read() as connection:
        look = look_ahead(connection, iso(now)[:7], now=now)
        anomalies = find_anomalies(connection, now=now)
        settled = settlement_now(connection, look.month) if read_grants(connection) else None
    alerts = list(alerts_of(look, anomalies, now=now))
    if settled is not None:
        alerts += credit_alerts(settled, now=now)
    if alerts:
        with ledger.write() as connection:
            raise_alerts(connection, alerts)
    series = {name: list(values) for name, values in _series(look, anomalies).items()}
    write_snapshot(ledger, AHEAD, now, series)
    return series


def _series(look: LookAhead, anomalies: list[Anomaly]) -> dict[str, Any]:
    currency = look.daily.currency or ""
    # The most expensive first, so that the cap on labels cuts off the cheap ones.
    tenants = sorted(look.tenants, key=lambda t: (-look.tenants[t].so_far, t))[:LABEL_CAP]
    return {
        "florin_tenant_month_cost": (
            ((t, currency, look.priced_by(t)), look.tenants[t].so_far / FEMTO) for t in tenants
        ),
        "florin_tenant_month_cost_forecast": (
            ((t, currency, look.priced_by(t)), expected / FEMTO)
            for t in tenants
            if (expected := look.tenants[t].expected) is not None
        ),
        "florin_month_cost": [((currency,), look.everything.so_far / FEMTO)],
        "florin_month_cost_forecast": _bounds(look, currency),
        "florin_cost_budget": (
            ((tenant, currency), budget.amount / FEMTO) for tenant, budget in look.budgets.items()
        ),
        "florin_cost_budget_used_ratio": (
            ((tenant,), look.of(tenant).so_far / budget.amount)
            for tenant, budget in look.budgets.items()
            if budget.amount
        ),
        "florin_cost_anomaly_ratio": (
            ((anomaly.kind, anomaly.subject), float(anomaly.ratio)) for anomaly in anomalies[:LABEL_CAP]
        ),
    }


def _bounds(look: LookAhead, currency: str) -> Iterator[tuple[tuple[str, str], float]]:
    for name in ("expected", "low", "high"):
        cost = getattr(look.everything, name)
        if cost is not None:
            yield (name, currency), cost / FEMTO
