"""What GPUs can be had at which rate, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gateway.costs.prices.schemas import ListedPrice


@dataclass(frozen=True, slots=True)
class Offer:
    gpu_type: str
    purchase: str
    region: str
    rate: Decimal
    """Per GPU-hour."""
    currency: str
    speedup: tuple[Decimal, str] | None = None
    """The speed that the price book states, and the GPU type it is relative to."""


def current_offers(prices: Iterable[ListedPrice], now: datetime) -> list[Offer]:
    """The prices in force, cheapest first. Of several of one kind, that which began last."""
    in_force: dict[tuple[str, str, str], ListedPrice] = {}
    for price in sorted(prices, key=lambda p: (p.valid_from, p.recorded_at)):
        until = price.valid_to
        if datetime.fromisoformat(price.valid_from) <= now and (
            until is None or now < datetime.fromisoformat(until)
        ):
            in_force[price.gpu_type, price.purchase, price.region] = price
    offers = [
        Offer(
            *kind,
            Decimal(price.rate_per_gpu_hour),
            price.currency,
            None if price.speedup is None else (Decimal(price.speedup), str(price.speedup_reference)),
        )
        for kind, price in in_force.items()
    ]
    return sorted(offers, key=lambda offer: (offer.rate, offer.gpu_type, offer.purchase, offer.region))


def speed_of(offer: Offer, stated: Mapping[str, float], reference: str) -> float | None:
    """Times that of the reference, a GPU type; None: unknown. `stated`: by GPU type in lower case, which the
    price book yields to."""
    if (speed := stated.get(offer.gpu_type.lower())) is not None:
        return speed
    if reference.lower() in offer.gpu_type.lower():
        return 1.0
    if offer.speedup is not None and reference.lower() in offer.speedup[1].lower():
        return float(offer.speedup[0])
    return None
