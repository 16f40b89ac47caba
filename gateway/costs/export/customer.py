"""A customer's own export: what it is charged, and nothing from which it could compute what a GPU costs.

With a rate card, rows have its prices: tokens of each kind times the rate, then free allowance, minimum and
corrections of these, so that the file sums to the statement. Without one, rows have costs, but no GPU-hours
and no unit prices: tokens are priced per million, time that no token accounts for by the hour or day, and a
share of unused time by the month. List and contracted cost are what the customer is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from gateway.costs.allocation import Allocated
from gateway.costs.cost_lines import CostLine
from gateway.costs.export import chargeback
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import Charge
from gateway.costs.export.columns import Column, Granularity
from gateway.costs.export.row_facts import object_text
from gateway.costs.periods import iso
from gateway.costs.periods import month as month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.cards import RateCard, RateCards
from gateway.costs.selling.charges import (
    KINDS,
    MINIMUM_SKU,
    SKUS,
    MonthCharges,
    Tokens,
    list_price,
    price_id,
    rates_of,
)
from gateway.costs.selling.posted import tenant_months, tokens_of

_COMMITMENT = ("Category", "Id", "Name", "Quantity", "Type", "Unit")
"""Not the status, which stays empty: the 1.2 rules for ConsumedQuantity refer to it."""
WITHHELD = frozenset(
    {
        *("engine", "gpu_hours", "rate_per_gpu_hour", "x_GpuHours"),
        *(f"CommitmentDiscount{name}" for name in _COMMITMENT),
    }
)
"""Columns that a customer's file does not have."""
_UNIT_PRICES = ("ContractedUnitPrice", "ListUnitPrice")
_COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost")
_PERIODS: dict[Granularity, str] = {"hourly": "Hours", "daily": "Days"}
_METERS = {"input": "Input Tokens", "cached": "Cached Input Tokens", "output": "Output Tokens"}
_COLUMNS = {"input": "x_InputTokens", "cached": "x_CachedTokens", "output": "x_OutputTokens"}
_ALLOWANCE_SKU = "free-allowance"


def columns_for(columns: Iterable[Column]) -> list[Column]:
    return [column for column in columns if column.name not in WITHHELD]


def unlisted(_gpu_type: str, _region: str, _at: int) -> None:
    """The list price of a GPU-hour, for a customer: it is not told."""


@dataclass(frozen=True, slots=True)
class Customer:
    """Whose file it is, and by which cards it pays."""

    tenant: str
    month: str
    cards: RateCards
    granularity: Granularity = "hourly"

    @classmethod
    def read(
        cls, connection: Connection, tenant: str, month: str, granularity: Granularity = "hourly"
    ) -> Customer:
        return cls(tenant, month, read_cards(connection), granularity)

    @property
    def currency(self) -> str:
        return next((card.currency for card in self.cards.cards), "")

    def card_of(self, line: CostLine) -> RateCard | None:
        """By which a line is charged. The first of its keys is the hour."""
        return self.cards.card(self.tenant, line.keys[0][:7] if line.correction else self.month)

    def charged(self, line: CostLine) -> CostLine:
        """A line without the rate of its GPU, if a card prices it."""
        return line if self.card_of(line) is None else replace(line, rate_micros=0)

    def focus(self, charges: Iterable[Charge]) -> Iterator[Row]:
        """Rows from charges grouped by `chargeback.BY`."""
        for charge in charges:
            if charge.line.bucket == "usage":
                card = self.card_of(charge.line)
                at_cost = map(self.hidden, chargeback.rows([charge]))
                yield from at_cost if card is None else _priced(charge, card)

    def at_cost(self, allocated: Mapping[str, Allocated]) -> dict[str, Allocated]:
        """Shares of unused time by month: only of months without a card."""
        return {of: parts for of, parts in allocated.items() if self.cards.card(self.tenant, of) is None}

    def hidden(self, row: Row) -> Row:
        """A row at cost without what a GPU-hour costs, and how many there were."""
        consumed, cost = row["ConsumedQuantity"], row["BilledCost"]
        assert isinstance(consumed, Fixed)
        assert isinstance(cost, Fixed)
        if row["ConsumedUnit"] == "Tokens":
            measured: Row = {"PricingQuantity": Fixed(consumed.units, 6), "PricingUnit": "1000000 Tokens"}
        else:
            measured = _one("Months" if row["x_Bucket"] == "allocated" else _PERIODS[self.granularity])
        return {
            **row,
            **measured,
            **_unit_price(None),
            **_costs(cost.units),
            "CommitmentDiscountStatus": None,
            "SkuPriceDetails": object_text(x_GpuType=row["x_GpuType"]),
            "SkuPriceId": str(row["SkuPriceId"]).rpartition("@")[0],
        }

    def plain(self, line: CostLine, row: Row) -> Row:
        """A ledger line with what is charged for it instead of its cost."""
        card = self.card_of(line)
        return row if card is None else {**row, "cost": Fixed(list_price(card, tokens_of(line)), 15)}

    def month_rows(self, connection: Connection, book: PriceBook) -> Iterator[Row]:
        """Free allowance and minimum, and what corrections changed in these."""
        whole = tenant_months(connection, book, self.month, self.cards, {self.tenant: 0}, {}).get(self.tenant)
        if whole is None:
            return
        if whole.current is not None:
            yield from self._adjustments(whole.current.card, _adjusted(whole.current))
        for of, changed in whole.corrections.items():
            parts = zip(_adjusted(changed.after), _adjusted(changed.before), strict=True)
            both = [new - old for new, old in parts]
            yield from self._adjustments(changed.after.card, both, corrects=of)

    def _adjustments(self, card: RateCard, amounts: Iterable[int], corrects: str = "") -> Iterator[Row]:
        period = month_of(corrects or self.month)
        texts = ("Free allowance", "Difference to the monthly minimum")
        for sku, text, amount in zip((_ALLOWANCE_SKU, MINIMUM_SKU), texts, amounts, strict=True):
            if amount:
                yield {
                    "ChargePeriodStart": iso(period.start),
                    "ChargePeriodEnd": iso(period.end),
                    "ChargeClass": "Correction" if corrects else None,
                    "ChargeDescription": f"{text}, rate card {card.name}",
                    "ResourceId": f"rate-card/{card.name}",
                    "ResourceName": card.name,
                    "ResourceType": "Rate Card",
                    "SubAccountId": self.tenant,
                    "SubAccountName": self.tenant,
                    **_sku(card, sku, sku, text),
                    **_one("Months"),
                    **_unit_price(Fixed(amount, 15)),
                    **_costs(amount),
                    "x_Bucket": "usage",
                    **_no_tokens(self.tenant),
                }


def _one(period: str) -> Row:
    one = Fixed(1, 0)
    return {
        "PricingQuantity": one,
        "PricingUnit": period,
        "ConsumedQuantity": one,
        "ConsumedUnit": period,
    }


def _unit_price(price: Fixed | None) -> Row:
    names = (*_UNIT_PRICES, *(f"PricingCurrency{name}" for name in _UNIT_PRICES))
    return dict.fromkeys(names, price)


def _costs(amount: int) -> Row:
    """`amount`: in 10**-15 of the currency."""
    return dict.fromkeys(_COSTS, Fixed(amount, 15))


def _adjusted(charges: MonthCharges) -> tuple[int, int]:
    """What allowance and minimum change."""
    listed = list_price(charges.card, Tokens(*(kind.tokens for kind in charges.kinds)))
    return sum(kind.amount for kind in charges.kinds) - listed, charges.top_up


def _priced(charge: Charge, card: RateCard) -> Iterator[Row]:
    line = charge.line
    _, tenant, adapter, version, base_model, *_ = line.keys
    name = f"{adapter}@{version}" if adapter else base_model
    requests = line.requests
    rows = zip(KINDS, tokens_of(line), rates_of(card), strict=True)
    for kind, count, micros in rows:
        if not count and not requests:
            continue
        yield {
            "ChargePeriodStart": charge.start,
            "ChargePeriodEnd": charge.end,
            "ChargeClass": "Correction" if line.correction else None,
            "ChargeDescription": f"{_METERS[kind]} of {name}",
            "ResourceId": name,
            "ResourceName": name,
            "ResourceType": "LoRA Adapter" if adapter else "Base Model",
            "SubAccountId": tenant,
            "SubAccountName": tenant,
            **_sku(card, SKUS[kind], kind, _METERS[kind]),
            "PricingQuantity": Fixed(count, 6),
            "PricingUnit": "1000000 Tokens",
            "ConsumedQuantity": Fixed(count, 0),
            "ConsumedUnit": "Tokens",
            **_unit_price(Fixed(micros, 6)),
            **_costs(count * micros * 1000),
            "x_Adapter": adapter or None,
            "x_AdapterVersion": version or None,
            "x_BaseModel": base_model or None,
            "x_Bucket": "usage",
            **_no_tokens(tenant, requests),
            _COLUMNS[kind]: count,
        }
        requests = 0  # once per line, so that sums are right


def _sku(card: RateCard, sku: str, kind: str, meter: str) -> Row:
    return {
        "PricingCategory": "Standard",
        "SkuId": sku,
        "SkuMeter": meter,
        "SkuPriceId": price_id(card, kind),
        "SkuPriceDetails": object_text(x_RateCard=card.name, x_ValidFrom=card.valid_from),
        "Tags": object_text(),
    }


def _no_tokens(tenant: str, requests: int = 0) -> Row:
    return {
        **dict.fromkeys(_COLUMNS.values(), 0),
        "x_GpuType": "",
        "x_Requests": requests,
        "x_Tenant": tenant,
    }
