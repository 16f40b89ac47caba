"""What each tenant is billed for a month, from its cost lines. Pure, and exact until the last step.

Tenants are billed for delivered usage and for the unused time that the policy allocates to them. Retries and
unallocated time are borne by the operator of the fleet. This is the only place where amounts are rounded to
hundredths of the currency, by the largest remainder method: first all parts together, so that they sum to the
rounded whole, then each tenant's lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import Any

from gateway.costs.allocation import UNUSED
from gateway.costs.cost_lines import CostLine
from gateway.costs.policies.terms import MonthAllocation
from gateway.costs.prices.amounts import decimal_text

CENT = 10**13
"""In units of 10**-15 of the currency, as costs are."""
BILLED = ("usage", "allocated")
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class StatementEntry:
    """A line of a statement."""

    tenant: str
    kind: str
    """A bucket, or `allocated`."""
    adapter: str
    gpu_type: str
    region: str
    purchase: str
    correction: bool
    counts: tuple[int, ...]
    """As in COUNTS."""
    nano_gpu_hours: int
    cost: int
    corrects: str = ""
    """For a correction of kind `allocated`: the month that it corrects."""

    def document(self, cents: int | None) -> dict[str, Any]:
        about = {"corrects": self.corrects} if self.corrects else {}
        return {
            "kind": self.kind,
            "adapter": self.adapter,
            "gpu_type": self.gpu_type,
            "region": self.region,
            "purchase": self.purchase,
            "correction": self.correction,
            **about,
            **dict(zip(COUNTS, self.counts, strict=True)),
            "nano_gpu_hours": self.nano_gpu_hours,
            "cost": decimal_text(self.cost, 15),
            "amount_cents": cents,
        }


@dataclass(frozen=True, slots=True)
class Settlement:
    statements: dict[str, dict[str, Any]]
    """Tenant → its figures and lines."""
    totals: dict[str, Any]
    """Of all tenants, and what the operator bears."""


def settle(lines: Sequence[CostLine], allocated: MonthAllocation, tenants: Iterable[str] = ()) -> Settlement:
    """`lines` by (tenant, adapter), each with a rate. `tenants`: get a statement even without lines."""
    entries = _entries(lines, allocated)
    whole = sum(_cost(line) for line in lines)
    own: dict[str, list[StatementEntry]] = {name: [] for name in tenants}
    for entry in entries:
        if entry.kind not in UNUSED:
            own.setdefault(entry.tenant, []).append(entry)
    bills = {name: sum(e.cost for e in mine if e.kind in BILLED) for name, mine in own.items()}
    retries = sum(e.cost for e in entries if e.kind == "retry_waste")
    parts = {("tenant", name): bill for name, bill in bills.items()}
    parts["", "retry_waste"] = retries
    parts["", "unallocated"] = whole - retries - sum(bills.values())
    cents = rounded(parts, (2 * whole + CENT) // (2 * CENT))
    statements = {name: _statement(mine, cents["tenant", name]) for name, mine in own.items()}
    return Settlement(statements, _totals(lines, parts, cents, allocated))


def rounded(parts: Mapping[Any, int | Fraction], whole: int, unit: int = CENT) -> dict[Any, int]:
    """Largest remainder method: round each part down to whole units, then add one to the largest remainders
    (ties: smaller key) until they sum to `whole`, which must be their sum, rounded up or down."""
    floors = {key: int(part // unit) for key, part in parts.items()}
    left = whole - sum(floors.values())
    assert 0 <= left <= len(parts), "the whole is not the sum of the parts"
    for key in sorted(parts, key=lambda key: (-(parts[key] % unit), key))[:left]:
        floors[key] += 1
    return floors


def apportioned(parts: Mapping[Any, int | Fraction], whole: int, unit: int = CENT) -> dict[Any, int]:
    """`rounded`, also where `whole` is a few units off the sum of the parts, because it is what other rounded
    amounts leave: each part bears the same of the difference."""
    if not parts:
        return {}
    floor = sum(int(part // unit) for part in parts.values())
    each, rest = divmod(whole - floor, len(parts))
    return {key: cents + each for key, cents in rounded(parts, floor + rest, unit).items()}


def _entries(lines: Sequence[CostLine], allocated: MonthAllocation) -> list[StatementEntry]:
    """Lines of the same kind, adapter and GPU form one entry, regardless of their rates."""
    sums: dict[tuple[Any, ...], list[int]] = {}

    def add(key: tuple[Any, ...], values: Iterable[int]) -> None:
        held = sums.setdefault(key, [0] * (len(COUNTS) + 2))
        sums[key] = [a + b for a, b in zip(held, values, strict=True)]

    counted = attrgetter(*COUNTS)
    for line in lines:
        tenant, adapter = line.keys
        key = (tenant, line.bucket, adapter, line.gpu_type, line.region, line.purchase, line.correction, "")
        add(key, (*counted(line), line.nano_gpu_hours, _cost(line)))
    for corrects, parts in (("", allocated.own), *sorted(allocated.corrections.items())):
        for (tenant, gpu_type, region, purchase, rate), nano in parts.items():
            assert rate is not None, "rates must be frozen first"
            key = (tenant, "allocated", "", gpu_type, region, purchase, bool(corrects), corrects)
            add(key, (*(0 for _ in COUNTS), nano, nano * rate))
    entries = []
    for key, (*counts, nano, cost) in sorted(sums.items()):
        tenant, kind, adapter, gpu_type, region, purchase, correction, corrects = key
        entries.append(
            StatementEntry(
                tenant,
                kind,
                adapter,
                gpu_type,
                region,
                purchase,
                correction,
                tuple(counts),
                nano,
                cost,
                corrects,
            )
        )
    return entries


def _cost(line: CostLine) -> int:
    assert line.cost is not None, "rates must be frozen first"
    return line.cost


def _statement(entries: Sequence[StatementEntry], cents: int) -> dict[str, Any]:
    billed = {index: e.cost for index, e in enumerate(entries) if e.kind in BILLED}
    amounts = rounded(billed, cents) if billed else {}
    return {
        "nano_gpu_hours": sum(e.nano_gpu_hours for e in entries if e.kind == "usage"),
        "allocated_nano_gpu_hours": sum(e.nano_gpu_hours for e in entries if e.kind == "allocated"),
        "cost": decimal_text(sum(billed.values()), 15),
        "amount_cents": cents,
        "lines": [e.document(amounts.get(index)) for index, e in enumerate(entries)],
    }


def _totals(
    lines: Sequence[CostLine],
    parts: Mapping[tuple[str, str], int],
    cents: Mapping[tuple[str, str], int],
    allocated: MonthAllocation,
) -> dict[str, Any]:
    buckets: dict[str, list[int]] = {}
    for line in lines:
        held = buckets.setdefault(line.bucket, [0, 0])
        buckets[line.bucket] = [held[0] + line.nano_gpu_hours, held[1] + _cost(line)]
    billed = [key for key in parts if key[0] == "tenant"]
    return {
        **{name: sum(getattr(line, name) for line in lines) for name in COUNTS},
        "nano_gpu_hours": sum(line.nano_gpu_hours for line in lines),
        "allocated_nano_gpu_hours": sum(allocated.whole.values()),
        "cost": decimal_text(sum(parts.values()), 15),
        "amount_cents": sum(cents.values()),
        "buckets": {
            name: {"nano_gpu_hours": nano, "cost": decimal_text(cost, 15)}
            for name, (nano, cost) in sorted(buckets.items())
        },
        "billed": _part(sum(parts[key] for key in billed), sum(cents[key] for key in billed)),
        "retry_waste": _part(parts["", "retry_waste"], cents["", "retry_waste"]),
        "unallocated": _part(parts["", "unallocated"], cents["", "unallocated"]),
    }


def _part(cost: int, cents: int) -> dict[str, Any]:
    return {"cost": decimal_text(cost, 15), "amount_cents": cents}
