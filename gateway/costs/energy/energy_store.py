"""Stated power and emissions in the ledger, and the energy of a period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from gateway.costs.cost_lines import read_lines
from gateway.costs.energy.figures import WORKING, Energy, Grid, Power, Timeline, day_of, thousandths
from gateway.costs.periods import Period, instant, iso
from gateway.costs.prices.book import PriceBook
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import gpu_power, grid_factors

DIMENSIONS = ("tenant", "adapter", "gpu_type", "engine", "region", "day")
UNUSED = ("headroom", "startup", "idle")


def stated(ledger: Ledger) -> dict[str, Any]:
    """All figures ever stated, the latest first. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        power, grid = _read(connection)
    return {
        "power": [figure.document() for figure in reversed(power)],
        "grid": [figure.document() for figure in reversed(grid)],
    }


def set_power(
    ledger: Ledger,
    *,
    gpu_type: str,
    watts: str,
    idle_watts: str | None,
    source: str,
    valid_from: int | None,
    now: int,
    actor: str = "",
) -> tuple[Power, bool]:
    """State the power of a GPU type from a UTC day on (default: always). Returns it, and whether it is new.
    Raises EnergyError, LedgerUnavailableError."""
    busy = thousandths("watts", watts)
    idle = busy if idle_watts is None else thousandths("idle_watts", idle_watts)
    start = day_of("valid_from", valid_from or 0)
    values = {
        "gpu_type": gpu_type, "valid_from": start, "milliwatts": busy, "idle_milliwatts": idle,
        "source": source, "recorded_at": now,
    }  # fmt: skip  # a row
    with ledger.write() as connection:
        next_batch(connection)
        standing = Timeline(_read(connection)[0]).at(gpu_type, start)
        if standing is not None and _same(standing, values):
            return standing, False
        power = Power(**_insert(connection, gpu_power, values))
        record(connection, actor, "power.set", gpu_type, power.document(), now)
        return power, True


def set_grid(
    ledger: Ledger,
    *,
    region: str,
    grams_per_kwh: str,
    pue: str,
    source: str,
    valid_from: int | None,
    now: int,
    actor: str = "",
) -> tuple[Grid, bool]:
    """State the emissions of a region's grid, or of all regions without their own, from a UTC day on
    (default: always). Returns it, and whether it is new. Raises EnergyError, LedgerUnavailableError."""
    start = day_of("valid_from", valid_from or 0)
    values = {
        "region": region, "valid_from": start,
        "milligrams_per_kwh": thousandths("grams_per_kwh", grams_per_kwh),
        "pue_millis": thousandths("pue", pue, least=1), "source": source, "recorded_at": now,
    }  # fmt: skip  # a row
    with ledger.write() as connection:
        next_batch(connection)
        standing = Timeline(_read(connection)[1]).at(region, start)
        if standing is not None and _same(standing, values):
            return standing, False
        grid = Grid(**_insert(connection, grid_factors, values))
        record(connection, actor, "grid.set", region, grid.document(), now)
        return grid, True


def energy_report(ledger: Ledger, period: Period, by: Sequence[str]) -> dict[str, Any]:
    """Energy and emissions of a period, divided like GPU time: `rows` are delivered requests, and with
    `retry_waste` and the unused time they sum to `total`. Raises LedgerUnavailableError."""
    rows: defaultdict[tuple[str, ...], Energy] = defaultdict(Energy)
    rest = {bucket: Energy() for bucket in ("retry_waste", *UNUSED)}
    total = Energy()
    missing_power: set[str] = set()
    missing_grid: set[str] = set()
    with ledger.read() as connection:
        powers, grids = _read(connection)
        power, grid = Timeline(powers), Timeline(grids)
        # Without prices: energy does not depend on them, and lines are fewer.
        for line in read_lines(connection, PriceBook([]), period, (*by, "day")):
            day = instant("day", line.keys[-1])
            drawn = power.at(line.gpu_type, day)
            mix = grid.at(line.region, day) or grid.at("", day)
            if drawn is None and line.nano_gpu_hours:
                missing_power.add(line.gpu_type)
            elif mix is None and line.nano_gpu_hours:
                missing_grid.add(line.region)
            into = rows[line.keys[: len(by)]] if line.bucket == "usage" else rest.get(line.bucket)
            for sums in (total, into):
                if sums is not None:
                    sums.add(line.nano_gpu_hours, drawn, mix, working=line.bucket in WORKING)
    return {
        "from": iso(period.start),
        "to": iso(period.end),
        "by": list(by),
        "rows": [
            {**dict(zip(by, key, strict=True)), **sums.document()} for key, sums in sorted(rows.items())
        ],
        **{bucket: sums.document() for bucket, sums in rest.items()},
        "provisioned": total.document(),
        "missing_power": sorted(missing_power),
        "missing_grid": sorted(missing_grid),
    }


def _read(connection: Connection) -> tuple[list[Power], list[Grid]]:
    power = connection.execute(select(gpu_power).order_by(gpu_power.c.id)).mappings()
    grid = connection.execute(select(grid_factors).order_by(grid_factors.c.id)).mappings()
    return [Power(**row) for row in power], [Grid(**row) for row in grid]


def _insert(connection: Connection, table: Table, values: dict[str, Any]) -> dict[str, Any]:
    return dict(connection.execute(insert(table).values(values).returning(table)).mappings().one())


def _same(standing: Power | Grid, values: dict[str, Any]) -> bool:
    """Whether stating it again would change nothing."""
    return all(getattr(standing, n) == v for n, v in values.items() if n not in {"recorded_at", "valid_from"})
