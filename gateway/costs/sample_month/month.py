"""A small made-up month to try the finance commands: `florin cost sample DIRECTORY` writes it.

October 2026 with three customers on two engines: a ledger, and a provider's bill that differs slightly from
it. Deterministic. `FLORIN_STATE_DIR=DIRECTORY florin serve` then serves no models but answers every query
about that month.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from sqlalchemy import insert

from gateway.costs.periods import month_of
from gateway.costs.prices.price_store import add_price
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_counters, engine_spans
from gateway.metering.records import NO_LABELS, Labels, Outcome, UsageRecord, UsageSource, record_id
from gateway.units import HOUR

MONTH = month_of("2026-10")
MODEL = "llama-3.1-8b"
ENGINES = {"h100-0": ("H100", 0.55), "l40s-1": ("L40S", 0.30)}
"""GPU type and share of busy time."""
CUSTOMERS = {"acme": (("support", 5), ("sales", 2)), "bolt": (("support", 4),), "corgi": (("support", 2),)}
"""Adapters and their share of calls."""
OUTCOMES = (Outcome.OK,) * 96 + (Outcome.CLIENT_ABORT,) * 3 + (Outcome.FAILOVER,)
STARTUP = 150_000_000
MAINTENANCE = (MONTH.start + 14 * 24 * HOUR + 2 * HOUR, MONTH.start + 14 * 24 * HOUR + 5 * HOUR)
"""Engine l40s-1 was down while its GPU was billed."""


def records() -> Iterator[UsageRecord]:
    draw = random.Random(10)  # noqa: S311  # the same figures each time
    adapters = [(t, name, often) for t, mine in CUSTOMERS.items() for name, often in mine]
    for engine, (gpu_type, load) in ENGINES.items():
        dispatched, number = MONTH.start + STARTUP, 0
        while dispatched < MONTH.end - HOUR:
            tenant, name, _ = draw.choices(adapters, [often for *_, often in adapters])[0]
            took = round(draw.lognormvariate(3.8, 0.6) * 1e6)
            number += 1
            if not (
                engine == "l40s-1" and dispatched + took > MAINTENANCE[0] and dispatched < MAINTENANCE[1]
            ):
                yield _record(
                    draw, f"req-{engine}-{number:08}", (tenant, name), (engine, gpu_type), dispatched, took
                )
            dispatched += round(took / load)


def _record(
    draw: random.Random,
    request: str,
    adapter: tuple[str, str],
    engine: tuple[str, str],
    dispatched: int,
    took: int,
) -> UsageRecord:
    outcome = draw.choice(OUTCOMES)
    prompt = draw.randint(200, 3000)
    completion = round(took / 1e6 * draw.uniform(25, 45) * (0.4 if outcome is not Outcome.OK else 1))
    return UsageRecord(
        id=record_id(request, 1),
        request_id=request,
        attempt=1,
        tenant=adapter[0],
        key_id=f"key-{adapter[0]}",
        adapter="/".join(adapter),
        version="v1" if dispatched < MONTH.start + 20 * 24 * HOUR else "v2",
        base_model=MODEL,
        engine=engine[0],
        gpu_type=engine[1],
        gpu_count=1,
        dispatched=dispatched,
        first_token=dispatched + took // 50,
        ended=dispatched + took,
        prompt_tokens=prompt,
        cached_tokens=draw.choice((0, 0, prompt // 2)) // 16 * 16,
        completion_tokens=completion,
        reasoning_tokens=0,
        n=1,
        usage_source=(
            UsageSource.ENGINE_FINAL if outcome is Outcome.OK else UsageSource.ENGINE_PARTIAL
        ).value,
        outcome=outcome.value,
        billable=outcome is not Outcome.FAILOVER,
        **_labels(request, *adapter)._asdict(),
    )


def _labels(request: str, tenant: str, adapter: str) -> Labels:
    """Only acme labels its requests. Not drawn, so that labels change no other figure."""
    if tenant != "acme":
        return NO_LABELS
    number = crc32(request.encode())
    return Labels(
        end_user=f"user-{number % 12:02}" if number % 5 else None,
        tag="nightly" if number % 7 == 0 else None,
        cost_centre="sales" if adapter == "sales" else "customer care",
    )


def fill(ledger: Ledger) -> None:
    """Load the month into an empty ledger."""
    for gpu_type, rate, speedup in (("H100", "2.99", "1"), ("L40S", "0.99", "0.31"), ("H200", "3.79", "1.4")):
        add_price(
            ledger, gpu_type=gpu_type, rate=rate, currency="USD", purchase="on_demand", region="",
            valid_from=0, valid_to=None, now=MONTH.start, speedup=None if gpu_type == "H100" else speedup,
            speedup_reference=None if gpu_type == "H100" else "H100",
            speedup_source=None if gpu_type == "H100" else "our load test of September",
        )  # fmt: skip
    attempts = sorted(records(), key=lambda record: record.ended or 0)
    for start in range(0, len(attempts), 500):
        ledger.insert(attempts[start : start + 500])
    with ledger.write() as connection:
        connection.execute(insert(engine_spans), list(_spans()))
        connection.execute(insert(engine_counters), list(_counters(attempts)))
        mark_dirty(
            connection,
            [(h, e, g, 1) for e, (g, _) in ENGINES.items() for h in range(MONTH.start, MONTH.end, HOUR)],
        )


def _spans() -> Iterator[dict[str, object]]:
    for engine, (gpu_type, _) in ENGINES.items():
        common = {
            "engine": engine, "worker": "sample", "gpu_type": gpu_type, "gpu_count": 1, "region": "",
            "purchase": "on_demand", "base_model": MODEL,
        }  # fmt: skip
        up = [(MONTH.start + STARTUP, MONTH.end)]
        if engine == "l40s-1":
            up = [(MONTH.start + STARTUP, MAINTENANCE[0]), (MAINTENANCE[1], MONTH.end)]
        yield {**common, "phase": "startup", "started": MONTH.start, "seen": MONTH.start + STARTUP}
        for began, seen in up:
            yield {**common, "phase": "up", "started": began, "seen": seen}


def _counters(attempts: list[UsageRecord]) -> Iterator[dict[str, object]]:
    """Counters as engines would report them: Florin's requests, work that continued unseen after a
    disconnect, and one health check sent directly to an engine."""
    for engine in ENGINES:
        own: Counter[str] = Counter(prompt_tokens=10, completion_tokens=1)
        for record in (r for r in attempts if r.engine == engine):
            own["prompt_tokens"] += record.prompt_tokens
            own["cached_tokens"] += record.cached_tokens or 0
            own["completion_tokens"] += record.completion_tokens + (record.outcome != Outcome.OK) * 7
        yield {"engine": engine, "epoch": MONTH.start, "hour": MONTH.end - HOUR, "at": MONTH.end - 1, **own}


def bill() -> str:
    """A bill for whole months regardless of use, including a forgotten GPU."""
    head = "start,end,resource,gpu_type,region,purchase,gpu_hours,cost,currency,description\n"
    hours = (MONTH.end - MONTH.start) // HOUR
    time = "2026-10-01,2026-11-01"
    lines = [
        f"{time},{engine},{gpu_type},,on_demand,{hours},{hours * rate / 100:.2f},USD,1 x {gpu_type}\n"
        for (engine, (gpu_type, _)), rate in zip(ENGINES.items(), (299, 99), strict=True)
    ]
    return head + "".join(lines) + f"{time},h100-9,H100,,on_demand,24,71.76,USD,left over from a trial\n"


def write(directory: Path) -> list[Path]:
    """Write the ledger, rolled up, and the bill into a directory that only you can enter. Raises OSError,
    also if there is a ledger already."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, billed = directory / "ledger.db", directory / "bill.csv"
    path.touch(mode=0o600, exist_ok=False)
    ledger = Ledger(f"sqlite:///{path}")
    try:
        fill(ledger)
        roll(ledger, MONTH.end + HOUR)
    finally:
        ledger.close()
    billed.write_text(bill())
    return [path, billed]
