"""What is coming: forecast, anomalies, alerts."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from gateway.api.dependencies import FinanceKey, StaffKey, StateDep
from gateway.api.finance_requests import (
    Month,
    Tagged,
    Tenant,
    ledger_process_of,
    month_of,
    owner_of,
    tenants_of,
)
from gateway.costs.forecasting.alerts import list_alerts, own_alerts
from gateway.costs.forecasting.anomalies import HABIT_DAYS, Bounds
from gateway.costs.forecasting.look_ahead import anomaly_report, forecast_report
from gateway.costs.forecasting.schemas import Alerts, Anomalies, Forecast
from gateway.costs.periods import Period, instant_or_none, iso
from gateway.costs.periods import month_of as whole_month
from gateway.errors import FlorinError
from gateway.operations.ledger_refresh import completeness, refreshed
from gateway.units import DAY

router = APIRouter(route_class=Tagged)

_DECIMAL = r"^\d{1,4}(\.\d{1,3})?$"


@router.get("/forecast", response_model_exclude_unset=True)
async def forecast(
    *,
    key: FinanceKey,
    state: StateDep,
    month: Month = None,
    tenant: Tenant = None,
    confidence: Annotated[
        Literal["80", "95"], Query(description="Confidence level of the interval, in percent.")
    ] = "80",
    as_of: Annotated[
        str | None,
        Query(description="As of this date, from the days before it. Shows how accurate forecasts were."),
    ] = None,
) -> Forecast:
    """Cost of a month (default: this month) so far, and expected at its end with an interval (`low`, `high`),
    for the installation and by tenant. For a tenant with a rate card (`priced_by`), what it is charged: the
    price of the tokens, before free allowance, tiers, minimum and discounts."""
    now, process = state.clock.now(), ledger_process_of(state, key)
    month = month_of(month or iso(now)[:7])
    lacks = await refreshed(state, process, whole_month(month), key.own_tenant)
    report = await process.run(
        forecast_report,
        month,
        now=now,
        tenants=tenants_of(key, tenant),
        confidence=80 if confidence == "80" else 95,
        as_of=instant_or_none("as_of", as_of),
        owner=owner_of(state, key),
    )
    return Forecast.read(report | completeness(state, lacks, report))


@router.get("/anomalies", response_model_exclude_unset=True)
async def anomalies(
    *,
    _: StaffKey,
    state: StateDep,
    factor: Annotated[
        str, Query(pattern=_DECIMAL, description="How many times the usual amount is an anomaly.")
    ] = "3",
    idle_percent: Annotated[
        str,
        Query(
            pattern=_DECIMAL, description="An engine is idle if it is unused for this percentage of the day."
        ),
    ] = "95",
) -> Anomalies:
    """Tenants and adapters that cost several times their habit (the median of the two weeks before) yesterday
    or today, and engines that idled all of yesterday. With a rate card, a tenant's cost is what it is charged
    (`priced_by`)."""
    if Fraction(factor) <= 1:
        raise FlorinError("invalid_value", "factor: must be greater than 1.", param="factor")
    if not 0 < Fraction(idle_percent) <= 100:
        raise FlorinError(
            "invalid_value", "idle_percent: must be above 0 and at most 100.", param="idle_percent"
        )
    bounds = Bounds(factor=Fraction(factor), idle_percent=Fraction(idle_percent))
    now = state.clock.now()
    lacks = await refreshed(state, state.ledger_process, Period(now - HABIT_DAYS * DAY, now))
    report = await state.ledger_process.run(anomaly_report, now=now, bounds=bounds)
    return Anomalies.read(report | completeness(state, lacks, report))


@router.get("/alerts", response_model_exclude_unset=True)
async def alerts(
    *,
    key: FinanceKey,
    state: StateDep,
    tenant: Tenant = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Alerts:
    """Alerts about budgets, credits and anomalies, newest first. Each is raised once; the webhook gets the
    same object. A tenant's key does not see those about the cost of days for which a rate card charges it."""
    process, owner, tenants = ledger_process_of(state, key), owner_of(state, key), tenants_of(key, tenant)
    if owner is not None:
        return Alerts.read(await process.run(own_alerts, owner, tenants=tenants, limit=limit))
    return Alerts.read({"data": await process.run(list_alerts, tenants=tenants, limit=limit)})
