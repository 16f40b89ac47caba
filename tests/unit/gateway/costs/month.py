"""A small fleet's months of records, for tests of what closes and verifies them."""

from __future__ import annotations

import random

from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord
from gateway.units import HOUR
from tests.support.ledger_rows import price, see_up
from tests.unit.gateway.metering.make import record

OCTOBER, NOVEMBER, DECEMBER = (month_of(f"2026-{n}").start for n in (10, 11, 12))
JANUARY = month_of("2026-12").end
TENANTS = ("acme", "bolt", "corgi")


def records(seed: int, start: int, count: int = 60, hours: int = 4) -> list[UsageRecord]:
    """Attempts of three tenants on two engines in the first hours from `start`, some across an hour's turn."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        tenant = rng.choice(TENANTS)
        begin = start + rng.randrange(hours * HOUR)
        prompt = rng.randrange(1, 500)
        outcome = rng.choice(("ok", "ok", "ok", "client_abort", "engine_error", "rejected"))
        pool = ("", "", 0) if outcome == "rejected" else rng.choice((("a", "H100", 2), ("b", "L40", 1)))
        made.append(
            record(
                f"{seed}-{number}",
                tenant=tenant,
                adapter=f"{tenant}/{rng.choice('xy')}",
                engine=pool[0],
                gpu_type=pool[1],
                gpu_count=pool[2],
                dispatched=begin,
                ended=begin + rng.randrange(1, HOUR),
                prompt_tokens=prompt if pool[0] else 0,
                cached_tokens=rng.choice((None, prompt // 2)) if pool[0] else None,
                completion_tokens=rng.randrange(500) if pool[0] else 0,
                outcome=outcome,
                billable=outcome == "ok",
            )
        )
    return made


def span(ledger: Ledger, start: int, hours: int = 5) -> None:
    """Both engines are up from `start`, the first minute of it not ready."""
    for engine, gpu_type, count in (("a", "H100", 2), ("b", "L40", 1)):
        pool = {"engine": engine, "gpu_type": gpu_type, "gpu_count": count, "worker": "w"}
        ready = start + 60_000_000
        see_up(ledger, start, ready, phase="startup", **pool)
        see_up(ledger, ready, start + hours * HOUR, **pool)


def fill(ledger: Ledger, *, prices: bool = True) -> None:
    """October and November with prices, one of which changes within an hour."""
    if prices:
        price(ledger, "H100", "2.49")
        price(ledger, "L40", "0.7")
        price(ledger, "H100", "2.191919", NOVEMBER + 2 * HOUR + 77_777_777)
    for seed, start in enumerate((OCTOBER, NOVEMBER)):
        made = records(seed, start)
        for first in range(0, len(made), 7):
            ledger.insert(made[first : first + 7])
        span(ledger, start)
