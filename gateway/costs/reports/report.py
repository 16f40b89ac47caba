"""The cost report: tokens, GPU time and cost of a period by tenant, adapter, GPU type and other dimensions.

`rows` hold delivered usage. Retry waste, headroom, start-up, idle time and corrections of closed months are
separate. Together they sum exactly to the whole, in GPU time and in money.

Requests and tokens count in the hour in which their attempt ended, GPU time and cost in the hour in which
they were spent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from gateway.costs.allocation import UNUSED, Allocated, AllocationPolicy, Pool, allocate, merged, pool, spread
from gateway.costs.closing.preview import settlement_now
from gateway.costs.cost_lines import CostLine, effective, read_lines
from gateway.costs.periods import LocalTime, Period, iso, months
from gateway.costs.policies.terms import MonthAllocation, allocate_month
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.converted import in_currency
from gateway.costs.reports.figures import Figures, Key, PriceFacts, Table
from gateway.costs.reports.invoiced import invoiced
from gateway.costs.reports.later_corrections import later_corrections
from gateway.costs.reports.overview import made_with, missing_prices, of_everything, unallocated
from gateway.costs.reports.parts import Part, parts_of, policy_name, state_of, unpriced_when_closed
from gateway.costs.reports.recomputed import is_pair, own_lines
from gateway.costs.reports.statement_amounts import StatementAmounts
from gateway.costs.reports.without_engine import without_engine
from gateway.costs.rollups.parts import DIMENSIONS as PART_DIMENSIONS
from gateway.costs.rollups.rollup import roll
from gateway.costs.rollups.set_aside import read_set_aside
from gateway.dataplane.labels import OTHER
from gateway.metering.ledger.ledger import Ledger

DEFAULT_BY = ("tenant", "adapter", "gpu_type")
POSTED, AS_KNOWN_NOW = "posted", "as known now"
_TENANTS = {"tenant", "adapter", "version", *PART_DIMENSIONS}
"""Dimensions that unused time does not have."""
ROLL_SECONDS = 30.0
_MOST_SET_ASIDE = 100


@dataclass(frozen=True, slots=True)
class Question:
    """What a report is about."""

    period: Period
    by: tuple[str, ...] = DEFAULT_BY
    tenants: tuple[str, ...] = ()
    """Only rows whose tenant equals every entry, and nothing without a tenant. (): everything."""
    policy: AllocationPolicy | None = None
    """How to allocate unused time. None: each month as it was closed, or by the standing policy."""
    limit: int | None = None
    """Maximum number of rows."""
    after: Key | None = None
    """Start after this key."""
    local: LocalTime | None = None
    """The timezone of its days. None: UTC. Months are closed in UTC, so a report in local time shows its
    hours as known now."""
    as_posted: bool = True
    """Whether whole months are shown as posted; False: their hours as known now."""
    amounts: bool = True
    """Whether whole months have amounts, in hundredths of the currency; False: only exact costs."""

    @property
    def months(self) -> tuple[str, ...] | None:
        """The months that it shows as posted; None: it shows hours as known now."""
        known_now = self.local is not None or not self.as_posted or is_pair(self.by)
        return None if known_now else months(self.period)


def cost_report(
    ledger: Ledger, question: Question, *, now: int, currency: str | None = None
) -> dict[str, Any]:
    """The report as a document; docs/finance.md shows one. First rolls up for a limited time; `complete` says
    whether the roll-ups are up to date.

    Memory use is proportional to the rows of a page; with a policy, to all rows. `currency`: the price book's
    by default.

    Raises ExchangeRateError, LedgerUnavailableError."""
    rolled = roll(ledger, now, patience=ROLL_SECONDS)
    with ledger.read() as connection:
        document = read_report(connection, question)
        if not question.tenants:
            book = PriceBook(read_prices(connection))
            document["without_engine"] = without_engine(connection, book, effective(question.period))
        posted = months(question.period) if document["basis"] == POSTED else None
        if posted is not None and len(posted) == 1 and not question.tenants:
            document["invoice"] = invoiced(
                connection, posted[0], document["provisioned"], document["currency"], now
            )
            if document["state"] == "closed":
                document["corrected_later"] = later_corrections(connection, posted[0])
        if currency is not None:
            document = in_currency(connection, document, currency, now)
    return {**document, "complete": rolled.pending == 0}


def report_text(
    ledger: Ledger, question: Question, *, now: int, currency: str | None = None
) -> tuple[str, dict[str, Any]]:
    """`cost_report` as JSON, rendered here because ten thousand rows would block the event loop, and
    separately what `set_apart` takes out of it."""
    report = cost_report(ledger, question, now=now, currency=currency)
    beside = set_apart(report)
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")), beside


def set_apart(report: dict[str, Any]) -> dict[str, Any]:
    """Takes `complete` and `next` out of a report; with them, by key, the ids of the `keys` in its rows, and
    the `lists` of what its figures lack."""
    beside = {name: report.pop(name) for name in ("complete", "next")} | {"lists": lists_of(report)}
    if "key" in report["by"]:
        beside["keys"] = sorted({row["key"] for row in report["rows"]} - {"", OTHER})
    return beside


def lists_of(report: dict[str, Any]) -> dict[str, Any]:
    """What a report lists of what its figures lack."""
    return {name: report[name] for name in ("set_aside", "missing_prices") if report.get(name)}


def read_report(connection: Connection, question: Question) -> dict[str, Any]:
    """`cost_report` without rolling up first."""
    prices = PriceBook(read_prices(connection))
    posted = question.months
    parts = parts_of(connection, question.period, posted, question.policy)
    sums = _Sums(question, allocating=any(part.terms.policy.allocates for part in parts))
    amounts = sums.amounts if posted is not None and question.amounts else None
    for part in parts:
        sums.begin(part.month)
        for line in own_lines(
            connection, prices, part.period, sums.by,
            tenants=sums.read_only, posted=posted is not None, local=question.local,
        ):  # fmt: skip  # as the call reads
            sums.add(line)
        if posted is not None:  # otherwise they are included in the hours as known now
            by = (*sums.by, "day")
            for line in read_lines(
                connection, prices, part.period, by, tenants=sums.read_only, corrections=True
            ):
                sums.correct(line)
        if sums.allocating:
            sums.allocate(connection, prices, part, posted=posted is not None)
    period = question.period if posted is not None else _read(question)
    report = {
        "currency": prices.currency,
        "from": iso(period.start),
        "to": iso(period.end),
        **_local(question.local, period),
        "by": list(question.by),
        "basis": AS_KNOWN_NOW if posted is None else POSTED,
        "state": None if posted is None else state_of(connection, posted),
        "policy": policy_name(parts, question.tenants),
        **made_with(connection, sums.facts),
        "missing_prices": missing_prices(sums.facts, unpriced_when_closed(connection, posted or ())),
        "set_aside": _set_aside(connection, effective(period), mine_only=bool(question.tenants)),
        **sums.document(),
        **({} if question.tenants else sums.nobodys([part.terms.policy for part in parts])),
        **({} if question.tenants else of_everything(connection, sums.facts, sums.corrected)),
    }
    if amounts is not None:
        policy = question.policy
        settled = [settlement_now(connection, part.month, policy=policy, book=prices) for part in parts]
        amounts.put(report, settled)
    return report


def _read(question: Question) -> Period:
    """Whole hours: of UTC, or of local time if these are others."""
    local = question.local
    return local.within if local is not None and local.cuts else effective(question.period)


def _local(local: LocalTime | None, period: Period) -> dict[str, Any]:
    if local is None:
        return {}
    times = {"from": local.iso(period.start), "to": local.iso(period.end)}
    return {"local": {"timezone": local.timezone, **times}}


def _set_aside(connection: Connection, period: Period, *, mine_only: bool) -> list[dict[str, Any]]:
    """Engine-hours of the period that are in none of the figures. Reasons may name other tenants' records, so
    they are only for callers who may see everything."""
    shown = [hour.document() for hour in read_set_aside(connection, period, limit=_MOST_SET_ASIDE)]
    if mine_only:
        return [{name: hour[name] for name in ("hour", "engine", "gpu_type")} for hour in shown]
    return shown


class _Sums:
    """Mutable: the report's tables while lines are added."""

    def __init__(self, question: Question, *, allocating: bool) -> None:
        self._question = question
        self._width = len(question.by)
        self._month = ""
        self.allocating = allocating
        self.amounts = StatementAmounts(question.by if question.amounts else (), question.tenants)
        self.by = question.by
        """Dimensions of the lines to read; those of corrections include the day."""
        if allocating or self.amounts.divides:
            self.by += ("tenant",)
        if self.amounts.divides:
            self.by += ("adapter",)
        self.read_only = () if allocating else question.tenants
        """Tenants whose lines to read."""
        self.rows = Table(question.by, allocated=allocating, after=question.after, most=question.limit)
        self.wasted = Table(question.by)
        own = tuple(n for n in question.by if n not in _TENANTS)
        self._nobodys = own if "gpu_type" in own else (*own, "gpu_type")
        self.unused = {bucket: Table(self._nobodys, counts=False) for bucket in UNUSED}
        self.corrections = Table(("month", "bucket", *question.by), allocated=allocating)
        self.totals = Figures()
        self.facts = PriceFacts()
        """Without corrections, if these are separate."""
        self.corrected = PriceFacts()
        self._all: list[CostLine] = []
        self.allocated: Allocated = {}

    def begin(self, month: str) -> None:
        """Start with the lines of another month."""
        self._month = month
        self._all = []

    def add(self, line: CostLine) -> None:
        if not self._takes(line):
            return
        key = line.keys[: self._width]
        self.facts.add(line)
        if line.bucket == "usage":
            self.rows.at(key).add(line)
            self.totals.add(line)
            if self.amounts.divides:
                tenant, adapter = line.keys[self._width : self._width + 2]
                self.amounts.add(self._month, tenant, adapter, line, key)
        elif line.bucket == "retry_waste":
            self.wasted.at(key).add(line)
        elif line.bucket in self.unused:
            values = {**dict(zip(self._question.by, key, strict=True)), "gpu_type": line.gpu_type}
            self.unused[line.bucket].at(tuple(values[name] for name in self._nobodys)).add(line)

    def correct(self, line: CostLine) -> None:
        if self._takes(line):
            self.corrected.add(line)
            self.corrections.at((line.keys[-1][:7], line.bucket, *line.keys[: self._width])).add(line)

    def _takes(self, line: CostLine) -> bool:
        if not self.allocating:
            return True
        self._all.append(line)
        return self._shows(line.keys[self._width])

    def _shows(self, tenant: str) -> bool:
        return all(name == tenant for name in self._question.tenants)

    def allocate(self, connection: Connection, book: PriceBook, part: Part, *, posted: bool) -> None:
        """Divide a month's unused time among the tenants, and each tenant's share among its rows."""
        used: defaultdict[tuple[str, Pool], defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        unused: defaultdict[Pool, defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        for line in self._all:
            key = line.keys[: self._width]
            if line.bucket == "usage" and not line.correction:
                used[self._tenant(line), pool(line)][key] += line.nano_gpu_hours
            elif line.bucket in UNUSED:
                unused[pool(line)][key] += line.nano_gpu_hours
        if posted:
            allocation = allocate_month(connection, book, part.month, part.terms, self._all, self._tenant)
        else:
            allocation = MonthAllocation(allocate(part.terms.policy, self._all, self._tenant))
        self.allocated = merged(self.allocated, allocation.total)
        for (tenant, *where, rate), nano in allocation.own.items():
            if not self._shows(tenant):
                continue
            self.totals.bear(nano, rate)
            series = (where[0], where[1], where[2])
            pool_: Pool = (*series, rate)
            # A tenant that used nothing bears its share where the time went unused.
            rows = (
                used.get((tenant, pool_))
                or self._borne_by(tenant, unused[pool_])
                or {self._row_without_use(tenant, series): 0}
            )
            for key, share in spread(nano, rows).items():
                self.rows.at(key).bear(share, rate)
                self.amounts.bear(part.month, tenant, series, share * (rate or 0), key)
        for corrected, shares in allocation.corrections.items():
            for (tenant, gpu_type, region, purchase, rate), nano in shares.items():
                if self._shows(tenant):
                    row = self._row_without_use(tenant, (gpu_type, region, purchase))
                    self.corrections.at((corrected, "allocated", *row)).bear(nano, rate)

    def _tenant(self, line: CostLine) -> str:
        return line.keys[self._width]

    def _row_without_use(self, tenant: str, series: tuple[str, str, str]) -> Key:
        known = {"tenant": tenant, **dict(zip(("gpu_type", "region", "purchase"), series, strict=True))}
        return tuple(known.get(name, "") for name in self._question.by)

    def _borne_by(self, tenant: str, unused: dict[Key, int]) -> dict[Key, int]:
        """Keys of unused time, with the tenant that bears it."""
        by = self._question.by
        return {
            tuple(tenant if name == "tenant" else value for name, value in zip(by, key, strict=True)): nano
            for key, nano in unused.items()
        }

    def document(self) -> dict[str, Any]:
        rows, after = self.rows.page()
        return {
            "rows": rows,
            "next": after,
            "totals": self.totals.document(allocated=self.allocating),
            "rejected": sum(line.requests for line in self.facts if line.bucket == "rejected"),
            "retry_waste": self.wasted.document(),
            "corrections": self.corrections.document(),
        }

    def nobodys(self, policies: Sequence[AllocationPolicy]) -> dict[str, Any]:
        """Unused time, the part of it that is not allocated, and the policies by which the rest is."""
        document: dict[str, Any] = {bucket: table.document() for bucket, table in self.unused.items()}
        if self.allocating:
            document["unallocated"] = unallocated([*self.facts, *self.corrected], self.allocated)
        if all(policy == policies[0] for policy in policies):
            document |= {"shares": dict(policies[0].shares)} if policies[0].shares else {}
            document |= {"own_policies": dict(policies[0].own)} if policies[0].own else {}
        return document
