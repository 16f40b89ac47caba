"""What each tenant is billed for a month, from its cost lines. Pure, and exact until the last step.

Tenants are billed for delivered usage and for the unused time that the policy allocates to them. Retries and
unallocated time are borne by the operator of the fleet. This is the only place where amounts are rounded to
the smallest unit of the currency, by the largest remainder method: first all parts together, so that they sum
to the rounded total, then each tenant's lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from gateway.costs.allocation import UNUSED
from gateway.costs.closing.documents import BucketTotal, Part, StatementLine, TenantStatement, Totals
from gateway.costs.cost_lines import COUNTS, CostLine
from gateway.costs.policies.terms import MonthAllocation
from gateway.units import Amount, Cents, NanoHours, cents_of, rounded, total

BILLED = ("usage", "allocated")


@dataclass(frozen=True, slots=True)
class Settlement:
    statements: Mapping[str, TenantStatement]
    totals: Totals


class _Key(NamedTuple):
    """Lines with the same are one, regardless of their rates."""

    tenant: str
    kind: str
    adapter: str
    gpu_type: str
    region: str
    purchase: str
    correction: bool
    corrects: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line that is not rounded yet."""

    key: _Key
    counts: tuple[int, ...]
    nano: NanoHours
    cost: Amount

    def line(self, cents: Cents | None) -> StatementLine:
        about = self.key._asdict()
        del about["tenant"]
        if not self.key.corrects:
            del about["corrects"]
        return StatementLine(
            **about,
            **dict(zip(COUNTS, self.counts, strict=True)),
            nano_gpu_hours=self.nano,
            cost=self.cost,
            amount_cents=cents,
        )


def settle(
    lines: Sequence[CostLine], allocated: MonthAllocation, tenants: Iterable[str] = (), *, step: int = 1
) -> Settlement:
    """`lines` by (tenant, adapter), each with a rate. `tenants`: get a statement even without lines.
    `step`: see `step_of`."""
    entries = _entries(lines, allocated)
    cost = total(map(_cost, lines))
    by_tenant: dict[str, list[_Entry]] = {name: [] for name in tenants}
    for entry in entries:
        if entry.key.kind not in UNUSED:
            by_tenant.setdefault(entry.key.tenant, []).append(entry)
    parts: dict[tuple[str, str], int] = {
        ("tenant", name): sum(_billed(own).values()) for name, own in by_tenant.items()
    }
    retries = sum(entry.cost for entry in entries if entry.key.kind == "retry_waste")
    unallocated = cost - retries - sum(parts.values())
    parts |= {("", "retry_waste"): retries, ("", "unallocated"): unallocated}
    cents = rounded(parts, cents_of(cost, step), step=step)
    statements = {name: _statement(own, cents["tenant", name], step) for name, own in by_tenant.items()}
    return Settlement(statements, _totals(lines, parts, cents, allocated))


def _entries(lines: Sequence[CostLine], allocated: MonthAllocation) -> list[_Entry]:
    sums: dict[_Key, list[int]] = {}

    def add(key: _Key, values: Iterable[int]) -> None:
        before = sums.get(key, [0] * (len(COUNTS) + 2))
        sums[key] = [a + b for a, b in zip(before, values, strict=True)]

    counted = attrgetter(*COUNTS)
    for line in lines:
        tenant, adapter = line.keys
        key = _Key(tenant, line.bucket, adapter, *line.series, line.correction)
        add(key, (*counted(line), line.nano_gpu_hours, _cost(line)))
    for corrects, parts in (("", allocated.own), *sorted(allocated.corrections.items())):
        for (tenant, gpu_type, region, purchase, rate), nano in parts.items():
            assert rate is not None, "rates must be frozen first"
            key = _Key(tenant, "allocated", "", gpu_type, region, purchase, bool(corrects), corrects)
            add(key, (*(0 for _ in COUNTS), nano, nano * rate))
    return [
        _Entry(key, tuple(counts), NanoHours(nano), Amount(cost))
        for key, (*counts, nano, cost) in sorted(sums.items())
    ]


def _cost(line: CostLine) -> Amount:
    assert line.cost is not None, "rates must be frozen first"
    return line.cost


def _billed(entries: Sequence[_Entry]) -> dict[int, Amount]:
    return {index: entry.cost for index, entry in enumerate(entries) if entry.key.kind in BILLED}


def _statement(entries: Sequence[_Entry], cents: Cents, step: int) -> TenantStatement:
    billed = _billed(entries)
    amounts = rounded(billed, cents, step=step) if billed else {}
    return TenantStatement(
        nano_gpu_hours=total(e.nano for e in entries if e.key.kind == "usage"),
        allocated_nano_gpu_hours=total(e.nano for e in entries if e.key.kind == "allocated"),
        cost=total(billed.values()),
        amount_cents=cents,
        lines=tuple(entry.line(amounts.get(index)) for index, entry in enumerate(entries)),
    )


def _totals(
    lines: Sequence[CostLine],
    parts: Mapping[tuple[str, str], int],
    cents: Mapping[tuple[str, str], Cents],
    allocated: MonthAllocation,
) -> Totals:
    buckets: dict[str, list[CostLine]] = {}
    for line in lines:
        buckets.setdefault(line.bucket, []).append(line)

    def part(*keys: tuple[str, str]) -> Part:
        return Part(
            cost=Amount(sum(parts[key] for key in keys)), amount_cents=total(cents[key] for key in keys)
        )

    everything = part(*parts)
    return Totals(
        **{name: sum(getattr(line, name) for line in lines) for name in COUNTS},
        nano_gpu_hours=_nano(lines),
        allocated_nano_gpu_hours=NanoHours(sum(allocated.total.values())),
        cost=everything.cost,
        amount_cents=everything.amount_cents,
        buckets={
            name: BucketTotal(nano_gpu_hours=_nano(same), cost=total(map(_cost, same)))
            for name, same in sorted(buckets.items())
        },
        billed=part(*(key for key in parts if key[0] == "tenant")),
        retry_waste=part(("", "retry_waste")),
        unallocated=part(("", "unallocated")),
    )


def _nano(lines: Iterable[CostLine]) -> NanoHours:
    return total(line.nano_gpu_hours for line in lines)
