"""florin cost forecast, anomalies, alerts"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.output import clean, note, note_incomplete, show, table
from gateway.commands.session import Session, command
from gateway.costs.forecasting.schemas import Alerts, Anomalies, Estimate, Forecast, excess_text
from gateway.schemas.finance import Complete, PriceSeries
from gateway.units import short, shown_money

app = typer.Typer()

STATUS = {
    "within": "within",
    "warning": "warning",
    "forecast_over": "forecast over",
    "reached": "reached",
}
"""How a budget's status is shown."""
BASIS = {"cost": "cost", "rate_card": "charge"}
"""In which terms amounts are."""
_STYLE = {"warning": "yellow", "forecast_over": "yellow", "reached": "red"}
_UNKNOWN = "Too few days are known for a forecast: it needs two complete days."


class Confidence(StrEnum):
    EIGHTY = "80"
    NINETY_FIVE = "95"


@command(app, "forecast")
def forecast(
    session: Session,
    *,
    month: Annotated[str | None, typer.Option(help="Month in UTC. Default: this month.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    confidence: Annotated[
        Confidence, typer.Option(help="Confidence level of the interval, in percent.")
    ] = Confidence.EIGHTY,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Forecast as of this date, from the days before it. Shows how accurate forecasts were."
        ),
    ] = None,
) -> None:
    """Forecast what the month will cost, with an interval, and compare it with the budgets.

    Example: florin cost forecast --confidence 95
    """
    params = {"month": month, "tenant": tenant, "confidence": confidence.value, "as_of": as_of}
    session.result(session.api.get("/finance/v1/forecast", Forecast, params), _forecast)


def _forecast(body: Forecast) -> None:
    currency = clean(body.currency)
    rows = [
        _forecast_row(clean(row.tenant), row, body.currency)
        for row in sorted(body.rows, key=lambda row: (-Decimal(row.so_far), row.tenant))
    ]
    if body.installation:
        rows.append([Text("")] * 8)
        rows.append(_forecast_row("provisioned GPU cost at list price", body.installation, body.currency))
    columns = ("tenant", f"so far {currency}", "expected", "low", "high", "budget", "status", "terms")
    show(table(columns, rows, right=columns[1:6]))
    note(
        f"{clean(body.month)}: {body.complete_days} of {body.days} days are complete. In "
        f"{body.confidence_percent} of 100 such months the cost ends between low and high."
    )
    unused = "exclude" if body.policy == "none" else "include their share of"
    note(f"Tenants' costs {unused} unused time (policy {clean(body.policy)}).")
    if any(row.priced_by == "rate_card" for row in body.rows):
        note("A charge is by the tenant's rate card, before allowance, tiers, discounts and minimum.")
    every = [*body.rows, *([body.installation] if body.installation else [])]
    if any(row.method == "none" for row in every):
        note(_UNKNOWN)
    unsaid(body)


def _forecast_row(name: str, row: Estimate, currency: str | None) -> list[str | Text]:
    amounts = (row.so_far, row.expected, row.low, row.high, row.budget)
    money = (shown_money(amount, currency) for amount in amounts)
    return [name, *money, status(row.status), BASIS[row.priced_by]]


@command(app, "anomalies")
def anomalies(
    session: Session,
    *,
    factor: Annotated[str, typer.Option(help="How many times the usual amount is an anomaly.")] = "3",
    idle_percent: Annotated[
        str, typer.Option(help="An engine is idle if it is unused for this percentage of the day.")
    ] = "95",
) -> None:
    """Find customers and adapters that cost several times the usual amount, and idle engines.

    The usual amount is the median of the two weeks before. Yesterday, and today so far, are compared with it.

    Example: florin cost anomalies --factor 2
    """
    params = {"factor": factor, "idle_percent": idle_percent}
    session.result(session.api.get("/finance/v1/anomalies", Anomalies, params), _anomalies)


def _anomalies(body: Anomalies) -> None:
    if not body.data:
        note(
            f"Nothing costs {clean(short(body.factor))} times its habit, and no engine is idle for "
            f"{clean(short(body.idle_percent))} % of its time."
        )
        unsaid(body)
        return
    money = partial(shown_money, currency=body.currency)
    rows = [
        (
            row.kind, row.subject, row.since, row.day, money(row.cost), money(row.habit),
            excess_text(row.kind, row.ratio, row.priced_by),
        )
        for row in body.data
    ]  # fmt: skip  # as the columns
    columns = ("kind", "name", "since", "day", f"cost {clean(body.currency)}", "habit", "")
    show(table(columns, rows, right=columns[4:6]))
    note("Cost of an engine: of its unused time on that day.")
    unsaid(body)


@command(app, "alerts")
def alerts(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
) -> None:
    """List the alerts about budgets and anomalies, newest first. Each is raised once.

    FLORIN_COST_WEBHOOK names the URL that they are posted to.

    Example: florin cost alerts --limit 5
    """
    raised = session.api.get("/finance/v1/alerts", Alerts, {"tenant": tenant, "limit": limit})
    session.result(raised, _alerts)


def _alerts(body: Alerts) -> None:
    if not body.data:
        note("No alert has been raised yet.")
        return
    rows = [(a.raised_at, a.type, a.tenant, a.about, a.delivered_at) for a in body.data]
    show(table(("raised", "alert", "tenant", "about", "delivered"), rows))


def unsaid(body: Complete) -> None:
    """Why figures may be too low."""
    for price in getattr(body, "missing_prices", ()):
        note(f"No price for {clean(_series(price))}: its cost is missing. Add one with florin price add.")
    note_incomplete(body)


def _series(price: PriceSeries | str) -> str:
    if isinstance(price, str):
        return price
    return " ".join(filter(None, (price.gpu_type, price.region, price.purchase)))


def status(name: str | None) -> Text:
    return Text(STATUS.get(name, name) if name else "", _STYLE.get(name or "", ""))
