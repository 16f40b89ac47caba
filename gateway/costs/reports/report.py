"""The cost report: tokens, GPU-time and cost of a period by tenant, adapter, GPU type and other dimensions.

`rows` hold delivered usage. Retry waste, headroom, start-up, idle time and corrections of closed months are
separate. Together they sum exactly to the whole, in GPU-time and in money.

Requests and tokens count in the hour in which their attempt ended, GPU-time and cost in the hour in which
they were spent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, select

from gateway.costs.allocation import NONE, UNUSED, Allocated, AllocationPolicy, Pool, allocate, pool, spread
from gateway.costs.cost_lines import CostLine, effective, read_lines
from gateway.costs.periods import Period, iso, months
from gateway.costs.prices.book import PriceBook, Series
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.converted import in_currency
from gateway.costs.reports.figures import Figures, Key, PriceFacts, Table
from gateway.costs.reports.overview import made_with, missing_prices, of_everything, unallocated
from gateway.costs.rollups.rollup import roll
from gateway.costs.rollups.set_aside import read_set_aside
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods

DEFAULT_BY = ("tenant", "adapter", "gpu_type")
POSTED, AS_KNOWN_NOW = "posted", "as known now"
_TENANTS = {"tenant", "adapter", "version"}
"""Dimensions that unused time does not have."""
_ROLL_SECONDS = 30.0
_MOST_SET_ASIDE = 100


@dataclass(frozen=True, slots=True)
class Question:
    """What a report is about."""

    period: Period
    by: tuple[str, ...] = DEFAULT_BY
    tenants: tuple[str, ...] = ()
    """Only rows whose tenant equals every entry, and nothing without a tenant. (): everything."""
    policy: AllocationPolicy | None = None
    """How to allocate unused time. None: as the closed month did, or not at all."""
    limit: int | None = None
    """Maximum number of rows."""
    after: Key | None = None
    """Start after this key."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of the months in the period."""

    state: str | None
    """None: the period is not whole months."""
    policy: AllocationPolicy
    unpriced: frozenset[Series]
    """Series without a price when the month was closed."""


def cost_report(
    ledger: Ledger, question: Question, *, now: int, currency: str | None = None
) -> dict[str, Any]:
    """The report as a document; docs/finance.md shows one. First rolls up for a limited time; `complete` says
    whether the roll-ups are up to date.

    Memory use is proportional to the rows of a page; with a policy, to all rows. `currency`: the price book's
    by default.

    Raises ExchangeRateError, LedgerUnavailableError."""
    rolled = roll(ledger, now, patience=_ROLL_SECONDS)
    with ledger.read() as connection:
        document = read_report(connection, question)
        if currency is not None:
            document = in_currency(connection, document, currency, now)
    return {**document, "complete": rolled.pending == 0}


def report_text(
    ledger: Ledger, question: Question, *, now: int, currency: str | None = None
) -> tuple[str, dict[str, Any]]:
    """`cost_report` as JSON, rendered here because ten thousand rows would block the event loop, and
    separately its `complete` and `next`."""
    report = cost_report(ledger, question, now=now, currency=currency)
    beside = {name: report.pop(name) for name in ("complete", "next")}
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")), beside


def read_report(connection: Connection, question: Question) -> dict[str, Any]:
    """`cost_report` without rolling up first."""
    prices = PriceBook(read_prices(connection))
    posted = months(question.period)
    terms = _terms(connection, posted, question.policy)
    sums = _Sums(question, terms.policy)
    for line in read_lines(
        connection,
        prices,
        question.period,
        sums.by,
        tenants=sums.read_only,
        corrections=None if posted is None else False,
    ):
        sums.add(line)
    if posted is not None:  # otherwise they are included in the hours as known now
        by = (*sums.by, "day")
        for line in read_lines(
            connection, prices, question.period, by, tenants=sums.read_only, corrections=True
        ):
            sums.correct(line)
    sums.allocate()
    whole = question.period if posted is not None else effective(question.period)
    return {
        "currency": prices.currency,
        "from": iso(whole.start),
        "to": iso(whole.end),
        "by": list(question.by),
        "basis": AS_KNOWN_NOW if posted is None else POSTED,
        "state": terms.state,
        "policy": terms.policy.name,
        **made_with(connection, sums.facts),
        "missing_prices": missing_prices(sums.facts, terms.unpriced),
        "set_aside": _set_aside(connection, whole, mine_only=bool(question.tenants)),
        **sums.document(),
        **({} if question.tenants else sums.nobodys(terms.policy)),
        **({} if question.tenants else of_everything(connection, sums.facts, sums.corrected)),
    }


def _set_aside(connection: Connection, whole: Period, *, mine_only: bool) -> list[dict[str, Any]]:
    """Engine-hours of the period that are in none of the figures. Reasons may name other tenants' records, so
    they are only for callers who may see everything."""
    shown = [one.document() for one in read_set_aside(connection, whole, limit=_MOST_SET_ASIDE)]
    if mine_only:
        return [{name: one[name] for name in ("hour", "engine", "gpu_type")} for one in shown]
    return shown


class _Sums:
    """Mutable: the report's tables while lines are added."""

    def __init__(self, question: Question, policy: AllocationPolicy) -> None:
        self._question = question
        self._policy = policy
        self._width = len(question.by)
        allocating = policy != NONE
        self.by = (*question.by, "tenant") if allocating else question.by
        """Dimensions of the lines to read; those of corrections include the day."""
        self.read_only = () if allocating else question.tenants
        """Tenants whose lines to read."""
        self.rows = Table(question.by, allocated=allocating, after=question.after, most=question.limit)
        self.wasted = Table(question.by)
        own = tuple(n for n in question.by if n not in _TENANTS)
        self._nobodys = own if "gpu_type" in own else (*own, "gpu_type")
        self.unused = {bucket: Table(self._nobodys, counts=False) for bucket in UNUSED}
        self.corrections = Table(("month", "bucket", *question.by))
        self.totals = Figures()
        self.facts = PriceFacts()
        """Without corrections, if these are separate."""
        self.corrected = PriceFacts()
        self._all: list[CostLine] = []
        self.allocated: Allocated = {}

    def add(self, line: CostLine) -> None:
        if not self._takes(line):
            return
        key = line.keys[: self._width]
        self.facts.add(line)
        if line.bucket == "usage":
            self.rows.at(key).add(line)
            self.totals.add(line)
        elif line.bucket == "retry_waste":
            self.wasted.at(key).add(line)
        elif line.bucket in self.unused:
            held = {**dict(zip(self._question.by, key, strict=True)), "gpu_type": line.gpu_type}
            self.unused[line.bucket].at(tuple(held[name] for name in self._nobodys)).add(line)

    def correct(self, line: CostLine) -> None:
        if self._takes(line):
            self.corrected.add(line)
            self.corrections.at((line.keys[-1][:7], line.bucket, *line.keys[: self._width])).add(line)

    def _takes(self, line: CostLine) -> bool:
        if self._policy == NONE:
            return True
        self._all.append(line)
        return self._shows(line.keys[self._width])

    def _shows(self, tenant: str) -> bool:
        return all(name == tenant for name in self._question.tenants)

    def allocate(self) -> None:
        """Divide unused time among the tenants, and each tenant's share among its rows."""
        if self._policy == NONE:
            return
        used: defaultdict[tuple[str, Pool], defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        for line in self._all:
            if line.bucket == "usage" and not line.correction:
                key = line.keys[: self._width]
                used[line.keys[self._width], pool(line)][key] += line.nano_gpu_hours
        self.allocated = allocate(self._policy, self._all, lambda line: line.keys[self._width])
        for (tenant, gpu_type, region, purchase, rate), nano in self.allocated.items():
            if not self._shows(tenant):
                continue
            self.totals.bear(nano, rate)
            known = {"tenant": tenant, "gpu_type": gpu_type, "region": region, "purchase": purchase}
            nothing = {tuple(known.get(name, "") for name in self._question.by): 0}
            rows = used.get((tenant, (gpu_type, region, purchase, rate)), nothing)
            for key, part in spread(nano, rows).items():
                self.rows.at(key).bear(part, rate)

    def document(self) -> dict[str, Any]:
        rows, after = self.rows.page()
        return {
            "rows": rows,
            "next": after,
            "totals": self.totals.document(allocated=self._policy != NONE),
            "rejected": sum(line.requests for line in self.facts if line.bucket == "rejected"),
            "retry_waste": self.wasted.document(),
            "corrections": self.corrections.document(),
        }

    def nobodys(self, policy: AllocationPolicy) -> dict[str, Any]:
        """Unused time, and the part of it that is not allocated."""
        made: dict[str, Any] = {bucket: table.document() for bucket, table in self.unused.items()}
        if policy != NONE:
            made["unallocated"] = unallocated([*self.facts, *self.corrected], self.allocated)
        if policy.shares:
            made["shares"] = dict(policy.shares)
        return made


def _terms(connection: Connection, posted: Sequence[str] | None, policy: AllocationPolicy | None) -> _Terms:
    if posted is None:
        return _Terms(None, policy or NONE, frozenset())
    table = periods.c
    columns = (table.month, table.state, table.policy, table.policy_shares, table.document)
    held = connection.execute(select(*columns).where(table.month.between(posted[0], posted[-1]))).all()
    states = {row.state for row in held} if len(held) == len(posted) else {"open"}
    state = next(name for name in ("open", "closing", "closed") if name in states)
    if policy is None and len(posted) == 1 and held:
        policy = AllocationPolicy(held[0].policy, orjson.loads(held[0].policy_shares or "{}"))
    unpriced: set[Series] = set()
    for row in held:
        missing = orjson.loads(row.document or "{}").get("terms", {}).get("missing_prices", ())
        unpriced |= {(gpu_type, region, purchase) for gpu_type, region, purchase in missing}
    return _Terms(state, policy or NONE, frozenset(unpriced))
