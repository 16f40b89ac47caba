"""What customers pay for a month, from its roll-ups."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.periods import month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCards
from gateway.costs.selling.charges import MonthCorrection, TenantMonth, Tokens, added, charge
from gateway.costs.selling.residency import Residency, of_tenants, residency_of
from gateway.metering.ledger.schema import rollup_parts, rollups
from gateway.metering.records import BATCH
from gateway.units import Amount

_BILLED = "usage"


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
    used: dict[str, Tokens] = {}
    for line in read_lines(connection, book, month_of(month), ("tenant",), corrections=False):
        if line.bucket == _BILLED:
            used[line.keys[0]] = added(used.get(line.keys[0], Tokens()), tokens_of(line))
    batch = _batch_tokens(connection, book, month, cards)
    corrected = _corrected_costs(connection, book, month)
    for key, cost in shares.items():
        corrected[key] = corrected.get(key, 0) + cost
    corrected_months = {corrected_month for _, corrected_month in corrected}
    before, after = _token_sums(connection, month, corrected_months)
    batch_before, batch_after = _token_sums(connection, month, corrected_months, batch=True)
    resident = {
        corrected_month: _residents(connection, corrected_month, cards)
        for corrected_month in {month, *(corrected_month for _, corrected_month in corrected)}
    }
    charged = {}
    for name in sorted(costs):
        months = {corrected_month: cost for (who, corrected_month), cost in corrected.items() if who == name}
        card = cards.card(name, month)
        priced = {
            corrected_month: month_card
            for corrected_month in months
            if (month_card := cards.card(name, corrected_month)) is not None
        }
        if card is None and not priced:
            continue
        charged[name] = TenantMonth(
            current=None
            if card is None
            else charge(card, used.get(name, Tokens()), resident[month].get(name), batch.get(name, Tokens())),
            corrections={
                corrected_month: MonthCorrection(
                    *(
                        charge(
                            month_card,
                            sums.get((name, corrected_month), Tokens()),
                            resident[corrected_month].get(name),
                            of_batches.get((name, corrected_month), Tokens()),
                        )
                        for sums, of_batches in ((before, batch_before), (after, batch_after))
                    )
                )
                for corrected_month, month_card in sorted(priced.items())
            },
            corrected_cost={
                corrected_month: Amount(cost)
                for corrected_month, cost in sorted(months.items())
                if corrected_month not in priced
            },
            cost=Amount(0 if card is not None else costs.get(name, 0) - sum(months.values())),
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


_Sums = dict[tuple[str, str], Tokens]


def _batch_tokens(connection: Connection, book: PriceBook, month: str, cards: RateCards) -> dict[str, Tokens]:
    """By tenant, if any card has a price of its own for them."""
    batch_tokens: dict[str, Tokens] = {}
    if all(card.batch_percent == 100 for card in cards.cards):
        return batch_tokens
    by = ("tenant", "service_tier")
    for line in read_lines(connection, book, month_of(month), by, corrections=False):
        tenant, tier = line.keys
        if line.bucket == _BILLED and tier == BATCH:
            batch_tokens[tenant] = added(batch_tokens.get(tenant, Tokens()), tokens_of(line))
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
            after[key] = added(after.get(key, Tokens()), tokens)
            if posted < month:
                before[key] = added(before.get(key, Tokens()), tokens)
    return before, after
