"""Whether an adapter's traffic is worth an engine into whose weights it is merged, for `florin doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select

from adapters.reconcile.diagnosis import Diagnosis
from adapters.registry.catalog import Catalog
from gateway.costs.periods import iso
from gateway.costs.prices.book import PriceBook
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rollups
from gateway.planning.merging import BATCH, gain, request_seconds, speedup, token_ms
from gateway.planning.simulator.hardware import Hardware
from gateway.units import HOUR, MICRO, NANO

HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class AdapterHours:
    """What an adapter used of one kind of GPU in the last HOURS hours."""

    adapter: str
    gpu_type: str
    gpu_count: int
    """GPUs of one engine."""
    region: str
    purchase: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    nano_gpu_hours: int
    """Attributed to its requests: without idle time."""
    calibration: int
    """0: some of this time was divided without one, so that it is not known how much of it was needed."""

    @property
    def tokens(self) -> tuple[float, float]:
        """Prompt and output tokens of a request."""
        return self.prompt_tokens / self.requests, self.output_tokens / self.requests

    def busy(self, hardware: Hardware) -> float:
        """Engines that it kept busy on average; without a calibration, not more than such hardware needs."""
        used = self.nano_gpu_hours / NANO / self.gpu_count / HOURS
        if self.calibration:
            return used
        needed = self.requests * request_seconds(hardware, *self.tokens, merged=False) / 3600 / HOURS
        return min(used, needed)


def used(ledger: Ledger, now: int) -> list[AdapterHours]:
    """The last full hours. `now`: Unix microseconds. Raises LedgerUnavailableError."""
    end = now // HOUR * HOUR
    kind = [rollups.c[n] for n in ("adapter", "gpu_type", "gpu_count", "region", "purchase")]
    names = ("requests", "prompt_tokens", "completion_tokens", "nano_gpu_hours")
    query = (
        select(*kind, *(func.sum(rollups.c[name]) for name in names), func.min(rollups.c.calibration))
        .where(rollups.c.posted >= iso(end - HOURS * HOUR)[: len("2026-07")])
        .where(rollups.c.hour >= end - HOURS * HOUR, rollups.c.hour < end, rollups.c.adapter != "")
        .group_by(*kind)
    )
    with ledger.read() as connection:
        return [AdapterHours(*map(_plain, row)) for row in connection.execute(query)]


def _plain(value: Any) -> Any:
    """PostgreSQL sums integers as decimals."""
    return value if isinstance(value, str) else int(value)


def of_merging(
    catalog: Catalog, uses: Sequence[AdapterHours], book: PriceBook, now: int
) -> Iterator[Diagnosis]:
    """What merged engines would save, for each adapter that has none."""
    hardware = Hardware.of()
    lora_ms, merged_ms = (token_ms(hardware, merged=merged) for merged in (False, True))
    merged = {engine.serves.partition("@")[0] for engine in catalog.engines.values() if engine.serves}
    for use in sorted(uses, key=lambda use: (use.adapter, use.gpu_type)):
        adapter = catalog.adapters.get(use.adapter)
        if adapter is None or adapter.live is None or use.adapter in merged or not use.requests:
            continue
        gained = gain(use.busy(hardware), speedup(hardware, *use.tokens))
        if gained is None:
            continue
        rate = book.rate(use.gpu_type, use.region, use.purchase, now)
        money = "" if rate is None else f" ({rate / MICRO * use.gpu_count * gained.saved:,.2f} an hour)"
        yield Diagnosis(
            "merged_engine_pays", "warning", use.adapter,
            f"In the last {HOURS} hours, its {use.requests / HOURS / 3600:.2g} requests/s kept "
            f"{gained.busy:.2f} engines of {use.gpu_count} x {use.gpu_type} busy. {gained.engines} with its "
            f"version merged into their weights would do the work of {gained.takes_over:.2f}, so they would "
            f"save {gained.saved:.2f}{money}: at batch {BATCH}, a token takes {merged_ms:.1f} ms there "
            f"instead of {lora_ms:.1f}.",
            f"florin engine run --merge {use.adapter}@v{adapter.live} …; see docs/merged.md.",
        )  # fmt: skip
