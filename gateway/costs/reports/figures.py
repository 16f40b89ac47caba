"""Sums of cost lines by key: the tables of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import Any

from gateway.costs.cost_lines import COUNTS, SUMS, CostLine
from gateway.units import Amount, NanoHours, amount_text, gpu_hours_text

Key = tuple[str, ...]
_sums_of = attrgetter(*SUMS)


@dataclass(slots=True)
class Figures:
    """Mutable: sums of the lines added so far."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    nano_gpu_hours: int = 0
    cost: int = 0
    unpriced: bool = False
    unpriced_nano: int = 0
    """Nano-GPU-hours without a price, of which `cost` has nothing."""
    allocated: int = 0
    """Nano-GPU-hours of unused time."""
    allocated_cost: int = 0

    def add(self, line: CostLine) -> None:
        self.requests += line.requests
        self.prompt_tokens += line.prompt_tokens
        self.cached_tokens += line.cached_tokens
        self.completion_tokens += line.completion_tokens
        self.reasoning_tokens += line.reasoning_tokens
        self.nano_gpu_hours += line.nano_gpu_hours
        if line.rate_micros is not None:
            self.cost += line.nano_gpu_hours * line.rate_micros
        elif line.bucket != "rejected":
            self.unpriced = True
            self.unpriced_nano += line.nano_gpu_hours

    def bear(self, nano: int, rate: int | None) -> None:
        """Add an allocated part of unused time."""
        self.allocated += nano
        self.allocated_cost += nano * (rate or 0)
        self.unpriced |= rate is None

    @property
    def empty(self) -> bool:
        """Whether everything is zero, for example because corrections cancel out."""
        counts = (getattr(self, name) for name in COUNTS)
        return not (any(counts) or self.nano_gpu_hours or self.cost or self.allocated or self.allocated_cost)

    def document(self, *, counts: bool = True, allocated: bool = False) -> dict[str, Any]:
        document: dict[str, Any] = {name: getattr(self, name) for name in COUNTS} if counts else {}
        document |= gpu_time(NanoHours(self.nano_gpu_hours), None if self.unpriced else Amount(self.cost))
        if self.unpriced:
            document |= partial(Amount(self.cost), NanoHours(self.unpriced_nano))
        if allocated:
            document["allocated_nano_gpu_hours"] = self.allocated
            document["allocated_cost"] = None if self.unpriced else amount_text(Amount(self.allocated_cost))
        return document


def gpu_time(nano: NanoHours, cost: Amount | None) -> dict[str, Any]:
    """GPU-seconds as a float, and GPU-hours and cost exactly."""
    return {
        "gpu_seconds": nano * 36 / 10_000_000,
        "gpu_hours": gpu_hours_text(nano),
        "nano_gpu_hours": nano,
        "cost": None if cost is None else amount_text(cost),
    }


def partial(cost: Amount, unpriced: NanoHours) -> dict[str, Any]:
    """The cost of what has a price, and the GPU time that has none."""
    return {"priced_cost": amount_text(cost), "unpriced_gpu_hours": gpu_hours_text(unpriced)}


class Table:
    """Figures by key. With `most`, keeps at most about twice as many: the first after `after`."""

    def __init__(
        self,
        by: Sequence[str],
        *,
        counts: bool = True,
        allocated: bool = False,
        after: Key | None = None,
        most: int | None = None,
    ) -> None:
        self.by = tuple(by)
        self._shape = {"counts": counts, "allocated": allocated}
        self._after = after
        self._most = most
        self._rows: dict[Key, Figures] = {}
        self._last: Key | None = None
        """Keys after this one are dropped. None: none are."""

    def at(self, key: Key) -> Figures:
        """The figures to add to. Those of a row outside the page are discarded."""
        row = self._rows.get(key)
        if row is not None:
            return row
        fresh = Figures()
        if (self._after is None or key > self._after) and (self._last is None or key <= self._last):
            self._rows[key] = fresh
            if self._most is not None and len(self._rows) > 2 * self._most + 1000:
                self._trim(self._most)
        return fresh

    def _trim(self, most: int) -> None:
        kept = sorted(self._rows)[: most + 1]
        self._rows = {key: self._rows[key] for key in kept}
        self._last = kept[-1]

    def page(self) -> tuple[list[dict[str, Any]], Key | None]:
        """Rows in order of their keys, without empty ones; and the key to continue after if there are
        more."""
        keys = [key for key in sorted(self._rows) if not self._rows[key].empty]
        shown = keys if self._most is None else keys[: self._most]
        more = shown[-1] if len(shown) < len(keys) else self._last
        return [self._document(key) for key in shown], more

    def total(self) -> Figures:
        """Only for a table without `most`."""
        sums = Figures()
        for figures in self._rows.values():
            for name in (*COUNTS, "nano_gpu_hours", "cost", "unpriced_nano", "allocated", "allocated_cost"):
                setattr(sums, name, getattr(sums, name) + getattr(figures, name))
            sums.unpriced |= figures.unpriced
        return sums

    def document(self) -> dict[str, Any]:
        """Only for a table without `most`."""
        return {"rows": self.page()[0], "totals": self.total().document(**self._shape)}

    def _document(self, key: Key) -> dict[str, Any]:
        return {**dict(zip(self.by, key, strict=True)), **self._rows[key].document(**self._shape)}


class PriceFacts:
    """Lines summed over everything that does not affect their price."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def add(self, line: CostLine) -> None:
        key = (
            line.bucket, *line.series, line.rate_micros, line.calibration,
            line.correction, line.task,
        )  # fmt: skip  # one name a line says no more
        figures = _sums_of(line)
        before = self._sums.get(key)
        self._sums[key] = figures if before is None else tuple(map(add, before, figures))

    def __iter__(self) -> Iterator[CostLine]:
        for key, sums in self._sums.items():
            yield CostLine((), *key, *sums)
