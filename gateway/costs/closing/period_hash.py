"""The period hash: the root of a closed month, computed from the ledger. A function of what was frozen at the
cutoff, so every computation gives the same result.

    record ──► tree of each tenant ──► public statement ──► tree of these ───┐
    roll-up rows of the month ──► digest ────────────────────────────────────┤
    price book at the cutoff ──► digest ─────────────────────────────────────┼─► header ──► root
    summary: cutoff, policy, rate cards, totals ──► digest ──────────────────┤
    full statements, with costs and GPU time ──► digest ─────────────────────┤
    root of the previous period ─────────────────────────────────────────────┘
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, func, select

from gateway.costs.closing.charging import with_charges, with_credits, with_manual_lines
from gateway.costs.closing.coverage import Coverage, Record, records, rollups_digest
from gateway.costs.closing.settlement import Settlement, settle
from gateway.costs.cost_lines import read_lines
from gateway.costs.credits.grants import holdings_from
from gateway.costs.manual_lines.store import lines_from
from gateway.costs.merkle import (
    VERSION,
    MerkleTree,
    digest,
    header_hash,
    ordered_leaf,
    withheld_line,
)
from gateway.costs.periods import month_of
from gateway.costs.policies.terms import MonthTerms, allocate_month
from gateway.costs.prices.book import PriceBook
from gateway.costs.proofs.proof import SUMS, in_order, tenants_root
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.posted import charged_tenants
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods, rollups
from gateway.units import HOUR, step_of

Progress = Callable[[str, int, int], None]
"""(step, done, total)"""
Counts = Mapping[str, Sequence[int]]
"""Tenant → requests, and SUMS of their tokens."""
assert SUMS == ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


@dataclass(slots=True)
class TenantSums:
    """Mutable: a tenant's records so far."""

    tree: MerkleTree = field(default_factory=MerkleTree)
    withheld: Any = field(default_factory=hashlib.sha256)
    """A hash over what customers do not see of their records."""
    tokens: list[int] = field(default_factory=lambda: [0] * len(SUMS))

    def add(self, record: Record) -> None:
        """Takes the withheld fields out of it."""
        self.withheld.update(withheld_line(record["id"], record.pop("engine"), record.pop("gpu_count")))
        self.tree.add(ordered_leaf(record))

    def count(self, tokens: Iterable[int]) -> None:
        """`tokens`: SUMS."""
        self.tokens = [a + b for a, b in zip(self.tokens, tokens, strict=True)]

    def document(self) -> dict[str, Any]:
        tokens = dict(zip(SUMS, self.tokens, strict=True))
        root, withheld = self.tree.root().hex(), self.withheld.hexdigest()
        return {"records": self.tree.count, "root": root, **tokens, "withheld": withheld}


@dataclass(frozen=True, slots=True)
class HashedPeriod:
    root: str
    header: dict[str, Any]
    summary: dict[str, Any]
    statements: list[dict[str, Any]]


def sums_of_records(
    ledger: Ledger,
    cover: Coverage,
    progress: Progress,
    each_hour: Callable[[int, Counts], None] = lambda *_: None,
) -> dict[str, TenantSums]:
    """Sums by tenant, in one pass over the records. `each_hour` is called with every hour in which one ended,
    in order, and its counts."""
    with ledger.read() as connection:
        query = select(func.coalesce(func.sum(rollups.c.requests), 0)).where(rollups.c.posted == cover.month)
        expected = int(connection.execute(query).scalar_one())
    sums: defaultdict[str, TenantSums] = defaultdict(TenantSums)
    done = 0
    for hour, ended_in_it in groupby(records(ledger, cover), lambda record: record["ended"] // HOUR):
        progress("records", done, expected)
        counts: dict[str, list[int]] = {}
        for record in ended_in_it:
            tenant = record["tenant"]
            sums[tenant].add(record)
            own = counts.get(tenant)
            if own is None:
                own = counts[tenant] = [0] * (1 + len(SUMS))
            own[0] += 1
            own[1] += record["prompt_tokens"]
            own[2] += record["cached_tokens"] or 0
            own[3] += record["completion_tokens"]
            own[4] += record["reasoning_tokens"]
        for tenant, (requests, *tokens) in counts.items():
            sums[tenant].count(tokens)
            done += requests
        each_hour(hour * HOUR, counts)
    return sums


def settlement_of(
    connection: Connection, month: str, terms: Mapping[str, Any], tenants: Sequence[str]
) -> Settlement:
    """The settlement of a month, from its rows with frozen rates, and what it charges by rate cards."""
    book = PriceBook([])
    lines = list(read_lines(connection, book, month_of(month), ("tenant", "adapter"), summed=False))
    cards = RateCards.of_rows(terms.get("rate_cards", {}))
    allocated = allocate_month(connection, book, month, MonthTerms.of(terms), lines)
    step = step_of(terms["currency"])
    settled = settle(lines, allocated, [*tenants, *charged_tenants(connection, month, cards)], step=step)
    charged = with_charges(connection, book, month, cards, settled, step)
    complete = with_manual_lines(charged, lines_from(terms.get("manual_lines", {})))
    return with_credits(complete, month, holdings_from(terms.get("credits", {})))


def compute_hash(
    ledger: Ledger,
    cover: Coverage,
    terms: Mapping[str, Any],
    previous_root: str | None,
    sums: Mapping[str, Mapping[str, Any]],
) -> HashedPeriod:
    """`terms`: as stored at the cutoff. `sums`: `TenantSums.document()` of each tenant.

    Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        settlement = settlement_of(connection, cover.month, terms, list(sums))
        rows = rollups_digest(connection, cover.month)
    nothing = TenantSums().document()
    statements = [
        {
            "version": VERSION,
            "month": cover.month,
            "tenant": tenant,
            "currency": terms["currency"],
            **sums.get(tenant, nothing),
            **statement.document(),
        }
        for tenant, statement in sorted(settlement.statements.items())
    ]
    summary = {
        "first_batch": cover.first_batch,
        "cutoff_batch": cover.cutoff_batch,
        **{name: value for name, value in terms.items() if name != "prices"},
        "records": sum(document["records"] for document in sums.values()),
        "tenants": len(statements),
        "totals": settlement.totals.document(),
    }
    header = {
        "version": VERSION,
        "month": cover.month,
        "previous_root": previous_root,
        "tenants_root": tenants_root(statements),
        "statements": digest(in_order(statements)),
        "rollups": rows,
        "prices": digest(terms["prices"]),
        "summary": digest(summary),
    }
    return HashedPeriod(header_hash(header).hex(), header, summary, statements)


def previous_root(connection: Connection, month: str) -> str | None:
    """The root of the latest period before a month."""
    query = select(periods.c.root).where(periods.c.month < month).order_by(periods.c.month.desc()).limit(1)
    root: str | None = connection.execute(query).scalar_one_or_none()
    return root
