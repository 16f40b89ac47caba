"""Alerts about cost: raised once each, listed, and delivered by webhook.

An alert's id derives from what it is about: a budget and its month, an anomaly and the day it began. So a
pass that finds the same again raises nothing, and a receiver that gets one twice can tell.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, and_, select, true, update

from gateway.costs.closing.preview import MonthSettlement
from gateway.costs.forecasting.anomalies import Anomaly
from gateway.costs.forecasting.budgets import ENOUGH_DAYS, Budget
from gateway.costs.forecasting.daily_costs import months_of
from gateway.costs.forecasting.forecast import HISTORY_DAYS, Forecast
from gateway.costs.forecasting.look_ahead import LookAhead, anomaly_document, estimate
from gateway.costs.owner import Owner, has_predecessor
from gateway.costs.periods import Period, iso, month_of
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_store import read_cards
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.database import insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import cost_alerts as table
from gateway.units import DAY, amount_text, decimal_text

_NAMESPACE: Final = uuid.UUID("0f6bb7a1-6d2c-5a0e-9a57-3d1f4c1f6f10")
_ABOUT_COST: Final = "Alerts about what you cost are left out: a rate card sets what you are charged."
_CREDIT_THRESHOLDS: Final = (("cost.credits_low", 80), ("cost.credits_used_up", 100))
"""From which part on, in percent."""
GIVEN_UP_AFTER: Final = 7 * DAY
"""Microseconds after which an alert that no webhook accepted is old news."""


@dataclass(frozen=True, slots=True)
class Alert:
    id: str
    at: int
    kind: str
    """`cost.budget_warning`, `cost.budget_forecast`, `cost.budget_reached`, `cost.credits_low`,
    `cost.credits_used_up`, `cost.top_up_refused`, `cost.anomaly` or `cost.engine_idle`."""
    tenant: str
    document: dict[str, Any]
    delivered_at: int | None = None

    def json(self) -> dict[str, Any]:
        """What the webhook gets, and listings show."""
        about = {"id": self.id, "type": self.kind, "raised_at": iso(self.at), "tenant": self.tenant or None}
        return {**about, "data": self.document}


def alerts_of(look: LookAhead, anomalies: Sequence[Anomaly], *, now: int) -> Iterator[Alert]:
    """The alerts that a look gives rise to, whether or not they were raised before. Pure."""
    for tenant, budget in look.budgets.items():
        forecast = look.of(tenant)
        document = _of_budget(look, budget, forecast)
        for kind in _crossed(budget, forecast):
            # The amount is part of it: a budget that was raised and is used up again is news.
            yield Alert(_id(kind, budget.id, look.month), now, kind, tenant, document)
    for anomaly in anomalies:
        kind = "cost.engine_idle" if anomaly.kind == "engine" else "cost.anomaly"
        document = {**anomaly_document(anomaly), "currency": look.daily.currency}
        alert_id = _id(kind, anomaly.kind, anomaly.subject, anomaly.since)
        yield Alert(alert_id, now, kind, anomaly.tenant, document)


def credit_alerts(settled: MonthSettlement, *, now: int) -> Iterator[Alert]:
    """The alerts about prepaid credits, once a part of what the month can draw is drawn. Pure."""
    for tenant, statement in settled.settlement.statements.items():
        prepaid = statement.credits
        if prepaid is None or not (available := prepaid.opening_cents + prepaid.granted_cents):
            continue
        document = {
            "month": settled.month,
            "currency": settled.currency,
            "priced_by": "rate_card" if statement.card else "cost",
            "available": decimal_text(available, 2),
            "drawn": decimal_text(prepaid.drawn_cents, 2),
        }
        for kind, percent in _CREDIT_THRESHOLDS:
            if prepaid.drawn_cents * 100 >= available * percent:
                # What is available is part of it: credits that were topped up and are drawn again are news.
                yield Alert(_id(kind, tenant, settled.month, available), now, kind, tenant, document)


def top_up_refused(ledger: Ledger, subject: str, details: Mapping[str, Any], *, now: int, actor: str) -> None:
    """Raise an alert, and note in the audit log, that a payment could not be granted as credits, and why
    (`reason`): once, however often the provider tries. Raises LedgerUnavailableError."""
    kind = "cost.top_up_refused"
    alert = Alert(_id(kind, subject, details["reason"]), now, kind, "", dict(details))
    with ledger.write() as connection:
        if raise_alerts(connection, [alert]):
            record(connection, actor, "credit.refuse", subject, alert.document, now)


def raise_alerts(connection: Connection, alerts: Iterable[Alert]) -> int:
    """In a write transaction: store those that are new. Returns how many."""
    rows = [
        {
            "id": alert.id, "at": alert.at, "kind": alert.kind, "tenant": alert.tenant,
            "document": orjson.dumps(alert.document).decode(), "delivered_at": None,
        }
        for alert in alerts
    ]  # fmt: skip  # a row
    if not rows:
        return 0
    put = insert(connection, table).on_conflict_do_nothing()
    return connection.execute(put, rows, execution_options={"preserve_rowcount": True}).rowcount


def list_alerts(ledger: Ledger, *, tenants: Sequence[str] = (), limit: int = 100) -> list[dict[str, Any]]:
    """Newest first. `tenants`: only those whose tenant equals every entry. Raises LedgerUnavailableError."""
    where = [table.c.tenant == tenant for tenant in set(tenants)]
    query = select(table).where(and_(true(), *where)).order_by(table.c.at.desc(), table.c.id).limit(limit)
    with ledger.read() as connection:
        return [_listed(_alert(row)) for row in connection.execute(query).mappings()]


def _listed(alert: Alert) -> dict[str, Any]:
    return {**alert.json(), "delivered_at": None if alert.delivered_at is None else iso(alert.delivered_at)}


def own_alerts(
    ledger: Ledger, owner: Owner, *, tenants: Sequence[str] = (), limit: int = 100
) -> dict[str, Any]:
    """As `list_alerts`, what the owner's key may see: no alert about the cost that rests on days for which it
    is charged by a rate card, and none about days of an earlier tenant of its name. Raises
    LedgerUnavailableError."""
    where = [table.c.tenant == tenant for tenant in {owner.tenant, *tenants}]
    query = select(table).where(*where, table.c.at >= owner.since).order_by(table.c.at.desc(), table.c.id)
    with ledger.read() as connection:
        cards, reused = read_cards(connection), has_predecessor(connection, owner)
        alerts = [_alert(row) for row in connection.execute(query).mappings()]
    charged = [alert for alert in alerts if not _tells_cost(cards, owner, alert)]
    shown = [alert for alert in charged if not reused or _basis(alert).start >= owner.since]
    left_out = {"note": _ABOUT_COST} if len(charged) < len(alerts) else {}
    return {"data": [_listed(alert) for alert in shown[:limit]], **left_out}


def _tells_cost(cards: RateCards, owner: Owner, alert: Alert) -> bool:
    if alert.document.get("priced_by") == "rate_card":
        return False
    return any(cards.card(owner.tenant, name) is not None for name in months_of(_basis(alert)))


def _basis(alert: Alert) -> Period:
    """The days that an alert's figures rest on: the month, and the history of a forecast or an anomaly."""
    begun = (
        alert.at if "month" not in alert.document else min(alert.at, month_of(alert.document["month"]).start)
    )
    return Period(max(0, min(begun, alert.at - alert.at % DAY - HISTORY_DAYS * DAY)), alert.at + 1)


def undelivered(ledger: Ledger, *, now: int, limit: int = 20) -> list[Alert]:
    """Oldest first. Raises LedgerUnavailableError."""
    query = (
        select(table)
        .where(table.c.delivered_at.is_(None), table.c.at >= now - GIVEN_UP_AFTER)
        .order_by(table.c.at, table.c.id)
        .limit(limit)
    )
    with ledger.read() as connection:
        return [_alert(row) for row in connection.execute(query).mappings()]


def mark_delivered(ledger: Ledger, alert_id: str, now: int) -> None:
    """Raises LedgerUnavailableError."""
    with ledger.write() as connection:
        connection.execute(update(table).where(table.c.id == alert_id).values(delivered_at=now))


def _crossed(budget: Budget, forecast: Forecast) -> Iterator[str]:
    """Each threshold on its own: a budget that is reached was also warned about."""
    if forecast.so_far * 100 >= budget.amount * budget.warn_percent:
        yield "cost.budget_warning"
    if forecast.so_far >= budget.amount:
        yield "cost.budget_reached"
    elif (
        forecast.days_known >= ENOUGH_DAYS
        and forecast.expected is not None
        and forecast.expected > budget.amount
    ):
        yield "cost.budget_forecast"


def _of_budget(look: LookAhead, budget: Budget, forecast: Forecast) -> dict[str, Any]:
    return {
        "month": look.month,
        "currency": look.daily.currency,
        "priced_by": look.priced_by(budget.tenant) if budget.tenant else "cost",
        "budget": budget.document()["amount"],
        "warn_percent": budget.warn_percent,
        "so_far": amount_text(forecast.so_far),
        "expected": estimate(forecast.expected),
        "low": estimate(forecast.low),
        "high": estimate(forecast.high),
    }


def _id(*parts: object) -> str:
    return str(uuid.uuid5(_NAMESPACE, "\n".join(map(str, parts))))


def _alert(row: Any) -> Alert:
    return Alert(**{**row, "document": orjson.loads(row["document"])})
