"""What customers pay for a month, from its roll-ups."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.periods import month
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.cards import RateCards
from gateway.costs.selling.charges import MonthCorrection, TenantMonth, Tokens, added, charge
from gateway.costs.selling.residency import of_tenants, residency_of
from gateway.metering.ledger.schema import rollup_parts, rollups
from gateway.metering.records import BATCH

_BILLED = "usage"


def tokens_of(line: CostLine) -> Tokens:
    return Tokens(line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)


def charged_tenants(connection: Connection, of: str, cards: RateCards) -> list[str]:
    """Tenants that pay for a month even without usage: a minimum, or for a resident adapter."""
    if not cards.assignments:
        return []
    residents = [
        tenant
        for tenant in _residents(connection, of, cards)
        if (card := cards.card(tenant, of)) is not None and card.residency_micros
    ]
    return sorted({*cards.charged(of), *residents})


def _residents(connection: Connection, of: str, cards: RateCards) -> dict[str, dict[str, int]]:
    """Tenant → its resident adapters; not looked for if no card has a price for them."""
    priced = any(card.residency_micros for card in cards.cards)
    return of_tenants(residency_of(connection, of)) if priced else {}


def tenant_months(
    connection: Connection,
    book: PriceBook,
    of: str,
    cards: RateCards,
    costs: Mapping[str, int],
    shares: Mapping[tuple[str, str], int],
) -> dict[str, TenantMonth]:
    """By tenant: what it pays for the month `of`, if a card has a part in it; who pays only costs is missing.

    `costs`: what each tenant would pay without cards, in 10**-15 of the currency: usage, unused time and
    corrections. `shares`: of these, by (tenant, month), how corrections changed its share of unused time.

    Raises LedgerUnavailableError."""
    if not cards.assignments:
        return {}
    used: dict[str, Tokens] = {}
    for line in read_lines(connection, book, month(of), ("tenant",), corrections=False):
        if line.bucket == _BILLED:
            used[line.keys[0]] = added(used.get(line.keys[0], Tokens()), tokens_of(line))
    batch = _batch_tokens(connection, book, of, cards)
    corrected = _corrected_costs(connection, book, of)
    for key, cost in shares.items():
        corrected[key] = corrected.get(key, 0) + cost
    corrected_months = {at for _, at in corrected}
    before, after = _token_sums(connection, of, corrected_months)
    batch_before, batch_after = _token_sums(connection, of, corrected_months, batch=True)
    resident = {at: _residents(connection, at, cards) for at in {of, *(at for _, at in corrected)}}
    found = {}
    for name in sorted(costs):
        months = {at: cost for (who, at), cost in corrected.items() if who == name}
        card = cards.card(name, of)
        priced = {at: made for at in months if (made := cards.card(name, at)) is not None}
        if card is None and not priced:
            continue
        found[name] = TenantMonth(
            current=None
            if card is None
            else charge(card, used.get(name, Tokens()), resident[of].get(name), batch.get(name, Tokens())),
            corrections={
                at: MonthCorrection(
                    *(
                        charge(
                            made,
                            sums.get((name, at), Tokens()),
                            resident[at].get(name),
                            of_batches.get((name, at), Tokens()),
                        )
                        for sums, of_batches in ((before, batch_before), (after, batch_after))
                    )
                )
                for at, made in sorted(priced.items())
            },
            corrected_cost={at: cost for at, cost in sorted(months.items()) if at not in priced},
            cost=0 if card is not None else costs.get(name, 0) - sum(months.values()),
        )
    return found


def _corrected_costs(connection: Connection, book: PriceBook, of: str) -> dict[tuple[str, str], int]:
    """(tenant, corrected month) → what the corrections posted to `of` change in its cost."""
    found: dict[tuple[str, str], int] = {}
    by = ("tenant", "day")
    for line in read_lines(connection, book, month(of), by, corrections=True):
        if line.bucket == _BILLED:
            key = line.keys[0], line.keys[1][:7]
            found[key] = found.get(key, 0) + (line.cost or 0)
    return found


_Sums = dict[tuple[str, str], Tokens]


def _batch_tokens(connection: Connection, book: PriceBook, of: str, cards: RateCards) -> dict[str, Tokens]:
    """By tenant, if any card has a price of its own for them."""
    found: dict[str, Tokens] = {}
    if all(card.batch_percent == 100 for card in cards.cards):
        return found
    by = ("tenant", "service_tier")
    for line in read_lines(connection, book, month(of), by, corrections=False):
        tenant, tier = line.keys
        if line.bucket == _BILLED and tier == BATCH:
            found[tenant] = added(found.get(tenant, Tokens()), tokens_of(line))
    return found


def _token_sums(
    connection: Connection, of: str, months: set[str], *, batch: bool = False
) -> tuple[_Sums, _Sums]:
    """(tenant, month) → its tokens as posted before `of`, and up to it. `batch`: of batches only."""
    table = (rollup_parts if batch else rollups).c
    before: _Sums = {}
    after: _Sums = {}
    counts = (table.prompt_tokens, table.cached_tokens, table.completion_tokens)
    for at in sorted(months):
        whole = month(at)
        query = (
            select(table.tenant, table.posted, *(func.sum(count) for count in counts))
            .where(table.posted.between(at, of), table.hour >= whole.start, table.hour < whole.end)
            .where(table.bucket == _BILLED)
            .group_by(table.tenant, table.posted)
        )
        if batch:
            query = query.where(table.dimension == "service_tier", table.name == BATCH)
        for tenant, posted, prompt, cached, output in connection.execute(query):
            tokens = Tokens(int(prompt) - int(cached), int(cached), int(output))
            key = tenant, at
            after[key] = added(after.get(key, Tokens()), tokens)
            if posted < of:
                before[key] = added(before.get(key, Tokens()), tokens)
    return before, after
