"""What customers pay for a month, from its roll-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection, select

from gateway.costs.cost_lines import CostLine, read_lines, read_postings
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_lines import NO_TOKENS, PriceKey, Tokens, added
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import MonthCharges, MonthCorrection, TenantMonth, charge
from gateway.costs.selling.dedicated import Dedicated, dedicated_in
from gateway.costs.selling.residency import Residency, of_tenants, residency_of
from gateway.metering.ledger.schema import periods
from gateway.metering.records import task_of
from gateway.units import NOTHING, Amount

_BILLED = "usage"
_Used = dict[tuple[str, str], dict[PriceKey, Tokens]]
"""(tenant, month) → what it used."""
PRICED_BY = ("adapter", "base_model")
"""Dimensions of lines that a rate card can price, apart from the service tier."""


def tokens_of(line: CostLine) -> Tokens:
    return Tokens(
        line.prompt_tokens - line.cached_tokens,
        line.cached_tokens,
        line.completion_tokens,
        line.reasoning_tokens,
        line.requests,
    )


def key_of(line: CostLine, adapter: str, base_model: str, service_tier: str = "") -> PriceKey:
    return PriceKey(adapter, base_model, task_of(line.task), line.gpu_type, service_tier)


def charged_tenants(connection: Connection, month: str, cards: RateCards) -> list[str]:
    """Tenants that pay for a month even without usage: a minimum, for a resident adapter, or for
    dedicated engines."""
    if not cards.assignments:
        return []
    residents = [
        tenant
        for tenant, adapters in _residents(connection, month, cards).items()
        if (card := cards.card(tenant, month)) is not None and card.prices_residency(adapters)
    ]
    owners = [
        tenant
        for tenant, gpu_types in _dedicated(connection, month, cards).items()
        if (card := cards.card(tenant, month)) is not None and card.prices_dedicated(gpu_types)
    ]
    return sorted({*cards.charged(month), *residents, *owners})


def _owing(connection: Connection, month: str, cards: RateCards) -> set[str]:
    """Tenants that paid for an earlier month even without usage; nobody, if it was skipped."""
    closed = connection.execute(select(periods.c.month).where(periods.c.month == month)).first()
    return set() if closed is None else set(charged_tenants(connection, month, cards))


def _residents(connection: Connection, month: str, cards: RateCards) -> dict[str, Residency]:
    """Tenant → its resident adapters; not looked for if no card has a price for them."""
    priced = any(line.residency_micros for card in cards.cards for line in (card.default_line, *card.lines))
    return dict(of_tenants(residency_of(connection, month))) if priced else {}


def _dedicated(connection: Connection, month: str, cards: RateCards) -> Dedicated:
    """Likewise."""
    priced = any(line.gpu_hour_micros for card in cards.cards for line in (card.default_line, *card.lines))
    return dedicated_in(connection, month) if priced else {}


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
    by = ("tenant", *PRICED_BY, *(("service_tier",) if any(c.tells_batches for c in cards.cards) else ()))
    used = _used(read_lines(connection, book, month_of(month), by, corrections=False), month)
    corrected = _corrected_costs(connection, book, month)
    for key, cost in shares.items():
        corrected[key] = corrected.get(key, 0) + cost
    before: _Used = {}
    after: _Used = {}
    earlier = {name for _, name in corrected}
    previous = iso(month_of(month).start - 1)[:7]
    for name in sorted(earlier):
        before |= _used(read_postings(connection, book, name, by, first=name, last=previous), name)
        after |= _used(read_postings(connection, book, name, by, first=name, last=month), name)
    resident = {name: _residents(connection, name, cards) for name in {month, *earlier}}
    dedicated = {name: _dedicated(connection, name, cards) for name in {month, *earlier}}
    owing = {name: _owing(connection, name, cards) for name in earlier}
    owing[month] = set(charged_tenants(connection, month, cards))

    def charges(card: RateCard, key: tuple[str, str], amounts: _Used) -> MonthCharges:
        """Without usage, only who has an assignment of its own pays the minimum."""
        tenant, name = key
        charged = charge(
            card, name, amounts.get(key, {}), resident[name].get(tenant), dedicated[name].get(tenant)
        )
        due = key in amounts or tenant in owing[name]
        return charged if due else replace(charged, top_up=NOTHING)

    charged = {}
    for tenant, cost in sorted(costs.items()):
        changes = {name: change for (who, name), change in sorted(corrected.items()) if who == tenant}
        card = cards.card(tenant, month)
        cards_then = {name: then for name in changes if (then := cards.card(tenant, name)) is not None}
        if card is None and not cards_then:
            continue
        charged[tenant] = TenantMonth(
            current=None if card is None else charges(card, (tenant, month), used),
            corrections={
                name: MonthCorrection(
                    charges(then, (tenant, name), before), charges(then, (tenant, name), after)
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


def _used(lines: Iterable[CostLine], month: str) -> _Used:
    """`lines`: by tenant, PRICED_BY and maybe the service tier."""
    used: _Used = {}
    for line in lines:
        if line.bucket == _BILLED:
            tenant, *names = line.keys
            own = used.setdefault((tenant, month), {})
            key = key_of(line, *names)
            own[key] = added(own.get(key, NO_TOKENS), tokens_of(line))
    return used
