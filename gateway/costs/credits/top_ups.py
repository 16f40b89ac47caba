"""What a payment provider's event says of a payment. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.costs.selling.cards import RateCardError
from gateway.units import decimal_text, places_of, typed_units

_LARGEST: Final = 10**15
_LONGEST: Final = 200
"""Characters of a field."""


@dataclass(frozen=True, slots=True)
class Payment:
    """As the event has it: texts, empty where it has none. Its tenant may not exist."""

    id: str
    tenant: str
    amount: str
    """A decimal, if it is one."""
    currency: str

    def document(self) -> dict[str, str]:
        return {"event": self.id, "tenant": self.tenant, "amount": self.amount, "currency": self.currency}


def read_event(content: bytes) -> Mapping[str, Any]:
    """Numbers with a decimal point stay as they are written. Raises RateCardError unless it is an object."""
    try:
        event = json.loads(content, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise RateCardError("body", "The body is not JSON.") from error
    if not isinstance(event, dict):
        raise RateCardError("body", "The body is not a JSON object.")
    return event


def is_payment(event: Mapping[str, Any], conditions: Sequence[tuple[str, str]]) -> bool:
    """`conditions`: (path, value) of what must hold."""
    return all(_text(event, path) == value for path, value in conditions)


def payment_of(event: Mapping[str, Any], paths: Mapping[str, str]) -> Payment:
    """`paths`: by the names of the setting."""
    texts = {name: _text(event, path) for name, path in paths.items()}
    currency = texts["currency"].upper()
    return Payment(texts["id"], texts["tenant"], _amount(texts, currency), currency)


def check(payment: Payment, currency: str) -> None:
    """`currency`: of the GPU prices, and so of all credits; empty: there are none yet. Raises
    RateCardError."""
    for name in ("id", "tenant", "amount", "currency"):
        if not getattr(payment, name):
            raise RateCardError(name, f"The event has no {name} where FLORIN_TOP_UP_FIELDS says.")
    if payment.currency != currency:
        own = f"credits are in {currency}" if currency else "there is no price yet, and so no currency"
        raise RateCardError("currency", f"The payment is in {payment.currency}; {own}.")


def _amount(texts: Mapping[str, str], currency: str) -> str:
    if "amount" in texts:
        return texts["amount"]
    units = typed_units(texts["minor_amount"], 0, _LARGEST)
    return texts["minor_amount"] if units is None else decimal_text(units, places_of(currency))


def _text(event: Any, path: str) -> str:
    """The text or number at a path; empty: there is none, or one that is too long to be what it should."""
    value = event
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    text = json.dumps(value) if isinstance(value, bool | int) else value if isinstance(value, str) else ""
    return text if len(text) <= _LONGEST and text.isprintable() else ""
