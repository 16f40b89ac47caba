"""A month of roll-ups with everything that an export must tell apart."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from gateway.costs.export.files import Order, write
from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours, rollups
from gateway.units import HOUR
from tests.support.ledger_rows import price, put

MONTH = "2026-10"
FIRST = month_of(MONTH).start

PRICES = (
    ("H100", "eu", "on_demand", "3.249999"),
    ("H100", "us", "spot", "1.1"),
    ("L40S", "", "reserved", "0.875"),
)
_WORKLOADS = (
    ("acme", "acme/support", "v3"),
    ("acme", "acme/support", "v4"),
    ("bolt", "bolt/sql", "v1"),
    ("bolt", "acme/support", "v4"),
    ("corgi", "", ""),
)


def add_prices(ledger: Ledger) -> None:
    for gpu_type, region, purchase, rate in PRICES:
        price(ledger, gpu_type, rate, currency="EUR", purchase=purchase, region=region)


def file_rows(ledger: Ledger, kind: str, dataset: str, **options: Any) -> list[dict[str, str]]:
    """A file of the month, as rows of a table."""
    file = io.BytesIO()
    with ledger.read() as connection:
        write(connection, Order(MONTH, kind, dataset, "Nordlicht GmbH", **options), file)
    return list(csv.DictReader(io.StringIO(file.getvalue().decode())))


def total(rows: Iterable[dict[str, str]], column: str = "BilledCost") -> Decimal:
    return sum((Decimal(row[column] or 0) for row in rows), Decimal(0))


def fill(ledger: Ledger, *, hours: int = 6, seed: int = 7) -> list[dict[str, Any]]:
    """Prices and rows of three engines; returns the rows. The first hour has corrections of the month before,
    the second two rates."""
    add_prices(ledger)
    rows = make(hours=hours, seed=seed)
    put(ledger, rollups, *rows)
    put(ledger, engine_hours, *wholes(rows))
    return rows


def wholes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Engine-hours to which the rows sum, so that a month can be closed."""
    sums: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in ("hour", "engine", "gpu_type", "gpu_count", "region", "purchase"))
        sums[key] = sums.get(key, 0) + row["nano_gpu_hours"]
    rest = dict.fromkeys(("provisioned_us", "startup_us", "busy_us", "records", "calibration"), 0)
    names = ("hour", "engine", "gpu_type", "gpu_count", "region", "purchase")
    return [
        {**dict(zip(names, key, strict=True)), **rest, "base_model": "", "nano_gpu_hours": nano}
        for key, nano in sums.items()
    ]


def make(*, hours: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(hours):
        hour = FIRST + number * HOUR
        for index, (gpu_type, region, purchase, _) in enumerate(PRICES):
            pool = {
                "posted": MONTH, "hour": hour, "piece": hour, "engine": f"gpu-{index}", "gpu_type": gpu_type,
                "gpu_count": 1 + index, "region": region, "purchase": purchase, "calibration": index,
                "correction": False, "rate_micros": None, "currency": None,
            }  # fmt: skip  # one field after the other says no more
            rows += _pool_hour(pool, rng)
    for sign in (-1, 1):  # a correction of the hour before the month
        rows.append(
            {**rows[0], "hour": FIRST - HOUR, "piece": FIRST - HOUR, "correction": True, "rate_micros": 3_000_000,
             "currency": "EUR", "requests": sign, "prompt_tokens": sign * (500 + sign), "cached_tokens": sign * 7,
             "completion_tokens": sign * 90, "reasoning_tokens": 0, "weight_input": sign * 493,
             "weight_cached": 0, "weight_output": sign * 180, "weight_other": 0,
             "nano_gpu_hours": sign * (123_456_789 + 1_000 * sign)}
        )  # fmt: skip  # as above
    rows.append({**rows[-1], "tenant": "bolt", "nano_gpu_hours": -77, "prompt_tokens": 5, "requests": 0})
    frozen = {"piece": FIRST + HOUR + HOUR // 2, "rate_micros": 2_000_001, "currency": "EUR"}
    rows += [{**row, **frozen} for row in rows if row["hour"] == FIRST + HOUR and row["engine"] == "gpu-0"]
    return rows


def _pool_hour(pool: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for tenant, adapter, version in _WORKLOADS:
        prompt = rng.randrange(0, 3_000_000)
        counts = {
            "requests": rng.randrange(1, 900), "prompt_tokens": prompt, "cached_tokens": prompt // 3,
            "completion_tokens": rng.randrange(0, 400_000), "reasoning_tokens": 0,
        }  # fmt: skip
        rows.append({
            **pool, **counts, "bucket": "usage", "tenant": tenant, "adapter": adapter, "version": version,
            "base_model": "base/llama", "nano_gpu_hours": rng.randrange(1, 200_000_000),
            "weight_input": prompt - prompt // 3, "weight_cached": rng.randrange(0, 5),
            "weight_output": 2 * counts["completion_tokens"], "weight_other": rng.randrange(0, 9),
        })  # fmt: skip
    nothing = dict.fromkeys(
        ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "weight_input",
         "weight_cached", "weight_output", "weight_other"), 0
    )  # fmt: skip
    delta = {"tenant": "delta", "adapter": "delta/chat", "version": "v1", "weight_output": 9}
    cut = {**rows[0], **nothing, **delta}
    waste = {**rows[1], "bucket": "retry_waste", "nano_gpu_hours": 1_234}
    rejected = {"bucket": "rejected", "requests": 3, "nano_gpu_hours": 0, "engine": "", "gpu_type": ""}
    refused = {**rows[2], **nothing, **rejected}
    nobody = {**pool, **nothing, "tenant": "", "adapter": "", "version": "", "base_model": "base/llama"}
    rest = [
        {**nobody, "bucket": b, "nano_gpu_hours": rng.randrange(1, 10**9)}
        for b in ("headroom", "startup", "idle")
    ]
    return [*rows, cut, waste, refused, *rest]
