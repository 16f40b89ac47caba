"""A year of a reseller: three base models on four engines, forty customers, most of whom pay by a rate card.

Its books are kept through the API. Its traffic is drawn, at the turns of the months, and goes into the ledger as
workers and engines report it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import residency_spans
from gateway.metering.records import UsageRecord
from gateway.units import HOUR
from tests.support.ledger_rows import put, residency_span, see_up
from tests.unit.gateway.metering.make import record

MONTHS = [f"2026-{number:02}" for number in range(1, 13)]
TENANTS = [f"t{number:02}" for number in range(1, 41)]
MINUTE = HOUR // 60
SMALL, LARGE, EMBED = "meta/8b", "meta/70b", "bge/embed"


class Place(NamedTuple):
    engine: str
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    base_model: str


PLACES = (
    Place("small-1", "L40S", 1, "", "on_demand", SMALL),
    Place("large-1", "H100", 4, "eu", "on_demand", LARGE),
    Place("large-2", "H100", 8, "eu", "spot", LARGE),
    Place("embed-1", "L4", 2, "", "reserved", EMBED),
)
PRICES = [
    {"gpu_type": "L40S", "rate_per_gpu_hour": "0.873331", "valid_from": "2026-01-01"},
    {"gpu_type": "H100", "rate_per_gpu_hour": "3.219999", "region": "eu", "valid_from": "2026-01-01"},
    {"gpu_type": "H100", "rate_per_gpu_hour": "1.1", "region": "eu", "purchase": "spot", "valid_from": "2026-01-01"},
    {"gpu_type": "L4", "rate_per_gpu_hour": "0.4", "purchase": "reserved", "valid_from": "2026-01-01"},
    {"gpu_type": "L40S", "rate_per_gpu_hour": "0.811117", "valid_from": "2026-05-01T01:00:00Z"},
    {"gpu_type": "H100", "rate_per_gpu_hour": "3.07", "region": "eu", "valid_from": "2026-06-01"},
]  # fmt: skip  # a price a line
CORRECTED = {"reason": "The invoice has another rate", "rate_per_gpu_hour": "2.990001"}
"""The last of them, in August."""

_LARGE = {
    "name": "large", "base_model": LARGE, "input_per_million": "3.3", "cached_per_million": "0.33",
    "output_per_million": "9.99", "reasoning_per_million": "12.5", "tier_mode": "volume",
    "tiers": [{"kind": "output", "above": 5_000, "price": "8.75"}, {"kind": "output", "above": 20_000, "price": "7"}],
}  # fmt: skip
_EMBED = {"name": "embed", "task": "embed", "input_per_million": "0.17", "output_per_million": "0"}
_GRADUATED = [
    {"kind": "input", "above": 3_000, "price": "0.55"}, {"kind": "input", "above": 12_345, "price": "0.4"},
    {"kind": "output", "above": 7_777, "price": "1.999999"},
]  # fmt: skip
CARDS: list[dict[str, Any]] = [
    {
        "name": "standard", "input_per_million": "0.63", "cached_per_million": "0.07", "output_per_million": "2.41",
        "free_input_tokens": 1_000, "free_output_tokens": 500, "tiers": _GRADUATED, "batch_percent": 50,
        "discount_percent": 7, "discount_until": "2026-06", "monthly_minimum": "0.02", "lines": [_LARGE, _EMBED], "valid_from": "2026-01",
    },
    {
        "name": "standard", "input_per_million": "0.59", "cached_per_million": "0.07", "output_per_million": "2.5",
        "free_input_tokens": 1_000, "tiers": _GRADUATED, "batch_percent": 50, "lines": [_LARGE, _EMBED],
        "valid_from": "2026-08",
    },
    {
        "name": "small", "input_per_million": "0.9", "output_per_million": "3", "per_request": "0.000125",
        "free_requests": 2, "monthly_minimum": "0.03", "valid_from": "2026-01",
        "tiers": [{"kind": "requests", "above": 3, "price": "0.0001"}],
        "lines": [{"name": "on-l40s", "gpu_type": "L40S", "input_per_million": "0.5", "output_per_million": "1.5"}],
    },
    {
        "name": "partner", "input_per_million": "0.5", "output_per_million": "2", "discount_percent": 10,
        "residency_per_adapter_hour": "0.012345", "monthly_minimum": "0.02", "batch_percent": 33,
        "valid_from": "2026-02", "lines": [
            {"name": "night", "base_model": LARGE, "service_tier": "batch", "input_per_million": "1.1",
             "output_per_million": "3.3", "free_output_tokens": 100},
            {"name": "own", "adapter": "t05/a", "input_per_million": "0.3", "output_per_million": "1",
             "residency_per_adapter_hour": "0.006"},
        ],
    },
]  # fmt: skip  # a card as it is sold


def assignments() -> Iterator[dict[str, Any]]:
    """Standard for who has no card of its own. Some pay the cost; some change what they pay by."""
    yield {"tenant": None, "card": "standard", "valid_from": "2026-01"}
    for tenant in TENANTS[4:12]:
        yield {"tenant": tenant, "card": "partner", "valid_from": "2026-02"}
    for tenant in TENANTS[12:20]:
        yield {"tenant": tenant, "card": "small", "valid_from": "2026-01"}
    for tenant in TENANTS[20:28]:
        yield {"tenant": tenant, "card": None, "valid_from": "2026-01"}
    for tenant in TENANTS[24:28]:  # the cost, then a card
        yield {"tenant": tenant, "card": "small", "valid_from": "2026-07"}
    for tenant in TENANTS[12:14]:  # a card, then the cost
        yield {"tenant": tenant, "card": None, "valid_from": "2026-04"}


MANUAL: list[tuple[str, dict[str, Any]]] = [
    ("2026-01", {"kind": "fee", "tenant": "t01", "amount": "49.99", "reason": "Support", "begins": "2026-01-01"}),
    ("2026-02", {"kind": "fee", "tenant": "t05", "adapter": "t05/a", "amount": "10.01", "reason": "Dedicated",
                 "begins": "2026-02-11", "ends": "2026-06-17", "prorated": True}),
    ("2026-03", {"kind": "charge", "tenant": "t21", "amount": "1200", "reason": "Fine-tuning"}),
    ("2026-05", {"kind": "credit", "tenant": "t01", "amount": "40", "reason": "Outage of 3 May"}),
    ("2026-09", {"kind": "refund", "tenant": "t21", "amount": "600.5", "reason": "Fine-tuning was cut short"}),
]  # fmt: skip  # a line each


def see(ledger: Ledger, month: str) -> None:
    """Engines are up at its first two hours and its last, the larger one of the month not ready at first; and
    adapters are resident for a while."""
    period = month_of(month)
    for place in PLACES:
        pool = {**place._asdict(), "worker": "w"}
        if month == MONTHS[0]:
            see_up(ledger, period.start, period.start + 2 * HOUR, **pool)
        ready = period.end - HOUR + (7 * MINUTE if place.gpu_count == 8 else 0)
        if ready > period.end - HOUR:
            see_up(ledger, period.end - HOUR, ready, **{**pool, "phase": "startup"})
        see_up(ledger, ready, period.end + 2 * HOUR, **pool)
    put(ledger, residency_spans, *stays(month))


def stays(month: str) -> list[dict[str, Any]]:
    """Two copies at once, and two versions."""
    start = month_of(month).start
    number = MONTHS.index(month)
    return [
        residency_span("t05/a@v1", start + number * MINUTE, start + 90 * MINUTE, engine="small-1"),
        residency_span("t05/a@v2", start + 80 * MINUTE, start + 101 * MINUTE + 7, engine="small-2"),
        residency_span("t06/b@v1", start + 5, start + (number + 1) * HOUR, engine="small-1"),
        residency_span("t01/a@v1", start, start + HOUR, engine="small-1"),
    ]


class Traffic(NamedTuple):
    arriving: dict[str, list[UsageRecord]]
    """Month → what is in the ledger when it is closed, and was not a month before."""


def traffic(seed: int, each: int) -> Traffic:
    """`each`: requests of a customer in a month, at most; a few have some only in some months. One in ten arrives
    up to three months late. The last of a month ends in the next one."""
    draw = random.Random(seed)
    arriving: dict[str, list[UsageRecord]] = {month: [] for month in MONTHS}
    for number, month in enumerate(MONTHS):
        period = month_of(month)
        for tenant in TENANTS:
            seldom = tenant in {"t20", "t39", "t40"}
            for n in range(0 if seldom and number % 3 else draw.randrange(each + 1)):
                late = draw.randrange(1, 4) if draw.random() < 0.1 else 0
                if number + late >= len(MONTHS):
                    late = 0
                begins = draw.choice(
                    (period.start + draw.randrange(90 * MINUTE), period.end - 1 - draw.randrange(HOUR))
                )
                name = f"{month}-{tenant}-{n}"
                arriving[MONTHS[number + late]] += _attempts(draw, name, tenant, begins)
    return Traffic(arriving)


def _attempts(draw: random.Random, name: str, tenant: str, begins: int) -> Iterator[UsageRecord]:
    place = draw.choice(PLACES)
    prompt = draw.randrange(1, 9_000)
    completion = 0 if place.base_model == EMBED else draw.randrange(1, 4_000)
    values = {
        **{n: v for n, v in place._asdict().items() if n not in {"region", "purchase"}},
        "tenant": tenant,
        "adapter": draw.choice((f"{tenant}/a", f"{tenant}/b", "")),
        "prompt_tokens": prompt,
        "cached_tokens": draw.choice((None, 0, prompt // 3)),
        "completion_tokens": completion,
        "reasoning_tokens": draw.choice((0, completion // 2)),
        "service_tier": draw.choice(("", "", "batch")),
        "task": draw.choice(("embed", "embed", "score")) if place.base_model == EMBED else "",
    }
    outcome = draw.choice(("ok",) * 6 + ("resumed", "client_abort"))
    ends = begins + draw.randrange(1, 30 * MINUTE)
    if draw.random() < 0.1:  # another engine failed first
        yield record(
            name, dispatched=begins, ended=begins + 9_000, outcome="failover", billable=False,
            **{**values, "completion_tokens": 0, "reasoning_tokens": 0},
        )  # fmt: skip
    yield record(name, attempt=2, dispatched=begins, ended=ends, outcome=outcome, **values)
