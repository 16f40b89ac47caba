"""What customers pay for a month, from its roll-ups."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.periods import month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCard, RateCards
from gateway.costs.selling.charges import (
    NO_TOKENS,
    MonthCharges,
    MonthCorrection,
    TenantMonth,
    Tokens,
    added,
    charge,
)
from gateway.costs.selling.residency import Residency, of_tenants, residency_of
from gateway.metering.ledger.schema import rollup_parts, rollups
from gateway.metering.records import BATCH
from gateway.units import Amount

_BILLED = "usage"
_Sums = dict[tuple[str, str], Tokens]
"""(tenant, month) → its tokens."""


def tokens_of(line: CostLine) -> Tokens:
    return Tokens(line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)


def charged_tenants(connection: Connection, month: str, cards: RateCards) -> list[str]:
    """Tenants that pay for a month even without usage: a minimum, or for a resident adapter."""
    if not cards.assignments:
        return []
    residents = [
        tenant
        for tenant in _residents(connection, month, cards)
        if (card := cards.card(tenant, month)) is not None and card.residency_micros
    ]
    return sorted({*cards.charged(month), *residents})


def _residents(connection: Connection, month: str, cards: RateCards) -> dict[str, Residency]:
    """Tenant → its resident adapters; not looked for if no card has a price for them."""
    priced = any(card.residency_micros for card in cards.cards)
    return dict(of_tenants(residency_of(connection, month))) if priced else {}


def tenant_months(
    connection: Connection,
    book: PriceBook,
    month: str,
    cards: RateCards,
    costs: Mapping[str, int],
    shares: Mapping[tuple[str, str], int],
) -> dict[str, TenantMonth]:
    """By tenant: what it pays for a month, if a card has a part in it; who pays only costs is missing.

    `costs`: what each tenant would pay without cards, in 10**-15 of the currency: usage, unused time and
    corrections. `shares`: of these, by (tenant, month), how corrections changed its share of unused time.

    Raises LedgerUnavailableError."""
    if not cards.assignments:
        return {}
    used: _Sums = {}
    for line in read_lines(connection, book, month_of(month), ("tenant",), corrections=False):
        if line.bucket == _BILLED:
            key = line.keys[0], month
            used[key] = added(used.get(key, NO_TOKENS), tokens_of(line))
    batch = _batch_tokens(connection, book, month, cards)
    corrected = _corrected_costs(connection, book, month)
    for key, cost in shares.items():
        corrected[key] = corrected.get(key, 0) + cost
    earlier = {name for _, name in corrected}
    before, after = _token_sums(connection, month, earlier)
    batch_before, batch_after = _token_sums(connection, month, earlier, batch=True)
    resident = {name: _residents(connection, name, cards) for name in {month, *earlier}}

    def charges(card: RateCard, key: tuple[str, str], tokens: _Sums, batches: _Sums) -> MonthCharges:
        tenant, name = key
        adapters = resident[name].get(tenant)
        return charge(card, tokens.get(key, NO_TOKENS), adapters, batches.get(key, NO_TOKENS))

    charged = {}
    for tenant, cost in sorted(costs.items()):
        changes = {name: change for (who, name), change in sorted(corrected.items()) if who == tenant}
        card = cards.card(tenant, month)
        cards_then = {name: then for name in changes if (then := cards.card(tenant, name)) is not None}
        if card is None and not cards_then:
            continue
        charged[tenant] = TenantMonth(
            current=None if card is None else charges(card, (tenant, month), used, batch),
            corrections={
                name: MonthCorrection(
                    charges(then, (tenant, name), before, batch_before),
                    charges(then, (tenant, name), after, batch_after),
                )
                for name, then in cards_then.items()
            },
            corrected_cost={name: Amount(c) for name, c in changes.items() if name not in cards_then},
            cost=Amount(0 if card is not None else cost - sum(changes.values())),
        )
    return charged


def _corrected_costs(connection: Connection, book: PriceBook, month: str) -> dict[tuple[str, str], int]:
    """(tenant, corrected month) → what the corrections posted to a month change in its cost."""
    costs: dict[tuple[str, str], int] = {}
    by = ("tenant", "day")
    for line in read_lines(connection, book, month_of(month), by, corrections=True):
        if line.bucket == _BILLED:
            key = line.keys[0], line.keys[1][:7]
            costs[key] = costs.get(key, 0) + (line.cost or 0)
    return costs


def _batch_tokens(connection: Connection, book: PriceBook, month: str, cards: RateCards) -> _Sums:
    """Those of the month, if any card has a price of its own for them."""
    batch_tokens: _Sums = {}
    if all(card.batch_percent == 100 for card in cards.cards):
        return batch_tokens
    by = ("tenant", "service_tier")
    for line in read_lines(connection, book, month_of(month), by, corrections=False):
        tenant, tier = line.keys
        if line.bucket == _BILLED and tier == BATCH:
            batch_tokens[tenant, month] = added(batch_tokens.get((tenant, month), NO_TOKENS), tokens_of(line))
    return batch_tokens


def _token_sums(
    connection: Connection, month: str, months: set[str], *, batch: bool = False
) -> tuple[_Sums, _Sums]:
    """(tenant, month) → its tokens as posted before a month, and up to it. `batch`: of batches only."""
    table = (rollup_parts if batch else rollups).c
    before: _Sums = {}
    after: _Sums = {}
    counts = (table.prompt_tokens, table.cached_tokens, table.completion_tokens)
    for corrected_month in sorted(months):
        period = month_of(corrected_month)
        query = (
            select(table.tenant, table.posted, *(func.sum(count) for count in counts))
            .where(
                table.posted.between(corrected_month, month),
                table.hour >= period.start,
                table.hour < period.end,
            )
            .where(table.bucket == _BILLED)
            .group_by(table.tenant, table.posted)
        )
        if batch:
            query = query.where(table.dimension == "service_tier", table.name == BATCH)
        for tenant, posted, prompt, cached, output in connection.execute(query):
            tokens = Tokens(int(prompt) - int(cached), int(cached), int(output))
            key = tenant, corrected_month
            after[key] = added(after.get(key, NO_TOKENS), tokens)
            if posted < month:
                before[key] = added(before.get(key, NO_TOKENS), tokens)
    return before, after
