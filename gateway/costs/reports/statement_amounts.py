"""Amounts of a report in hundredths of the currency: those of the statements, so that a customer's report,
the operator's report and the statement agree. Nothing is rounded anew, only divided further where rows are
finer than the lines of a statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.costs.closing.documents import StatementLine, TenantStatement
from gateway.costs.closing.preview import MonthSettlement
from gateway.costs.cost_lines import CostLine
from gateway.costs.reports.figures import Key
from gateway.units import Cents, amount_of, apportioned, rounded, step_of

_LINE = ("month", "tenant", "adapter", "gpu_type", "region", "purchase")
_OF_LINES = set(_LINE[1:])
"""Dimensions of a statement's lines."""
_MOST = 50_000
"""Most parts of lines to hold. A report that would divide them further has amounts of its totals only."""

_Line = tuple[str, ...]
"""As in _LINE: identifies a line of a statement."""


class StatementAmounts:
    """Takes a report's lines of whole months. Mutable: the parts so far."""

    def __init__(self, by: Sequence[str], tenants: Sequence[str]) -> None:
        self._by = tuple(by)
        self._tenants = tenants
        self.divides = "tenant" in by and not set(by) <= _OF_LINES
        """Whether rows are finer than lines, so that `add` is needed."""
        self._used: defaultdict[_Line, defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        self._borne: defaultdict[_Line, defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        self._parts = 0

    def __repr__(self) -> str:
        return f"<StatementAmounts by {', '.join(self._by)}: {self._parts} parts>"

    def add(self, month: str, tenant: str, adapter: str, line: CostLine, key: Key) -> None:
        """Add delivered usage to the row `key`."""
        if self.divides and self._parts <= _MOST:
            self._parts += 1
            entry = (month, tenant, adapter, *line.series)
            self._used[entry][key] += line.cost or 0

    def bear(self, month: str, tenant: str, pool: tuple[str, str, str], cost: int, key: Key) -> None:
        """Add allocated time to the row `key`."""
        self._borne[month, tenant, "", *pool][key] += cost

    def put(self, report: dict[str, Any], months: Iterable[MonthSettlement]) -> None:
        """Write the amounts into the report's document; null where a price is missing."""
        settled = list(months)
        step = min((step_of(month.currency) for month in settled), default=1)
        usage, allocated = self._rows(settled, step)
        for row in report["rows"]:
            key = tuple(row[name] for name in self._by)
            row["amount_cents"] = None if usage is None else _known(row, "cost", usage.get(key, 0))
            if "allocated_cost" in row:
                row["allocated_amount_cents"] = _known(row, "allocated_cost", allocated.get(key, 0))
        self._totals(report, settled)
        if not self._tenants:
            _put_unbilled(report, settled, step)

    def _rows(
        self, settled: Sequence[MonthSettlement], step: int
    ) -> tuple[dict[Key, int] | None, dict[Key, int]]:
        usage: defaultdict[Key, int] = defaultdict(int)
        allocated: defaultdict[Key, int] = defaultdict(int)
        for line, entry, cents in self._entries(settled, correction=False):
            if entry.kind == "allocated":
                _divide(self._borne[line], cents, allocated, step)
            elif self.divides:
                _divide(self._used[line], cents, usage, step)
            else:
                names = dict(zip(_LINE, line, strict=True))
                usage[tuple(names.get(name, "") for name in self._by)] += cents
        known = self._parts <= _MOST if self.divides else set(self._by) <= _OF_LINES
        return (usage if known else None), allocated

    def _totals(self, report: dict[str, Any], settled: Sequence[MonthSettlement]) -> None:
        for totals, correction in ((report["totals"], False), (report["corrections"]["totals"], True)):
            sums = {"usage": 0, "allocated": 0}
            for _, entry, cents in self._entries(settled, correction=correction):
                sums[entry.kind] += cents
            totals["amount_cents"] = _known(totals, "cost", sums["usage"])
            if "allocated_cost" in totals:
                totals["allocated_amount_cents"] = _known(totals, "allocated_cost", sums["allocated"])
        billed = sum(statement.amount_cents for statement in self._statements(settled).values())
        missing = {(month.month, *series) for month in settled for series in month.missing}
        lines = [line for late in (False, True) for line, *_ in self._entries(settled, correction=late)]
        unknown = any((month, *series) in missing for month, _, _, *series in lines)
        report["billed_cents"] = None if unknown else billed

    def _statements(self, settled: Sequence[MonthSettlement]) -> dict[tuple[str, str], TenantStatement]:
        return {
            (month.month, tenant): statement
            for month in settled
            for tenant, statement in month.settlement.statements.items()
            if all(tenant == name for name in self._tenants)
        }

    def _entries(
        self, settled: Sequence[MonthSettlement], *, correction: bool
    ) -> Iterator[tuple[_Line, StatementLine, Cents]]:
        """The billed lines of the statements, with their amounts."""
        for (month, tenant), statement in self._statements(settled).items():
            for entry in statement.lines:
                if entry.amount_cents is not None and entry.correction == correction:
                    yield (month, tenant, entry.adapter, *entry.series), entry, entry.amount_cents


def _divide(parts: Mapping[Key, int], cents: int, into: dict[Key, int], step: int) -> None:
    if parts:
        for key, part in rounded(parts, cents, step=step).items():
            into[key] += part


def _known(figures: Mapping[str, Any], name: str, cents: int) -> int | None:
    return None if figures[name] is None else cents


def _put_unbilled(report: dict[str, Any], settled: Sequence[MonthSettlement], step: int) -> None:
    """The amounts of what has no statement. With delivered usage, they sum to the whole."""
    totals = [month.settlement.totals for month in settled]
    everything = sum(sums.amount_cents for sums in totals)
    names = ("retry_waste", "headroom", "startup", "idle", "corrections")
    parts = {name: report[name]["totals"] for name in names}
    report["provisioned"]["amount_cents"] = _known(report["provisioned"], "cost", everything)
    if "unallocated" in report:
        left = sum(sums.unallocated.amount_cents for sums in totals)
        report["unallocated"]["amount_cents"] = _known(report["unallocated"], "cost", left)
    delivered = report["totals"]["amount_cents"]
    if delivered is None or any(part["cost"] is None for part in parts.values()):
        return
    fixed: dict[str, int] = {}
    if not report["corrections"]["rows"]:  # whose retries are part of the settlement's
        fixed = {"retry_waste": sum(sums.retry_waste.amount_cents for sums in totals), "corrections": 0}
    costs = {name: amount_of(part["cost"]) for name, part in parts.items() if name not in fixed}
    cents = fixed | apportioned(costs, everything - delivered - sum(fixed.values()), step=step)
    for name, part in parts.items():
        part["amount_cents"] = cents[name]
