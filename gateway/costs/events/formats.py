"""CloudEvents translated for billing systems. Pure.

- OpenMeter takes CloudEvents as they are, and drops a second one of the same source and id.
- Lago: `transaction_id` is the event's id.
- Stripe: a meter event carries one number, so each event becomes one for each kind of token. `identifier` is
  the event's id and that kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

Customers = Mapping[str, str]
"""Tenant → its customer or subscription in the billing system; others keep their names."""

_STRIPE: Final = {
    "input_tokens": "florin.input_tokens",
    "cached_input_tokens": "florin.cached_input_tokens",
    "output_tokens": "florin.output_tokens",
}
"""Field → meter. Input without cached: the two meters have prices of their own."""


def cloudevents(event: Mapping[str, Any], customers: Customers) -> Iterator[dict[str, Any]]:
    yield {**event, "subject": _customer(event, customers)}


def lago(event: Mapping[str, Any], customers: Customers) -> Iterator[dict[str, Any]]:
    yield {
        "transaction_id": event["id"],
        "external_subscription_id": _customer(event, customers),
        "code": event["type"].replace(".", "_"),
        "timestamp": f"{_seconds(event):.3f}",
        "properties": event["data"],
    }


def stripe(event: Mapping[str, Any], customers: Customers) -> Iterator[dict[str, Any]]:
    data = event["data"]
    for field, meter in _STRIPE.items():
        value = data[field] - (data["cached_input_tokens"] if field == "input_tokens" else 0)
        if value:
            yield {
                "event_name": meter,
                "identifier": f"{event['id']}:{field}",
                "timestamp": int(_seconds(event)),
                "payload": {"stripe_customer_id": _customer(event, customers), "value": str(value)},
            }


FORMATS = {"cloudevents": cloudevents, "lago": lago, "stripe": stripe}


def _customer(event: Mapping[str, Any], customers: Customers) -> str:
    tenant: str = event["subject"]
    return customers.get(tenant, tenant)


def _seconds(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()
