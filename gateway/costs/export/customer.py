"""A customer's own export: what it is charged, and nothing from which it could compute what a GPU costs.

With a rate card, rows have its prices: tokens of each kind times the rate, then resident adapters, free
allowance, minimum and corrections of these (see `card_rows`), so that the file sums to the statement. Without
one, rows have costs, but no GPU-hours and no unit prices: tokens are priced per million, time that no token
accounts for by the hour or day, and a share of unused time by the month. List and contracted cost are what
the customer is charged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from gateway.costs.allocation import Allocated
from gateway.costs.closing.preview import MonthSettlement, settlement_now
from gateway.costs.cost_lines import CostLine
from gateway.costs.export import card_rows, chargeback
from gateway.costs.export.card_rows import COLUMNS, costs, named, no_tokens, sku, unit_price
from gateway.costs.export.cells import Cell, Fixed, Row
from gateway.costs.export.charges import Charge
from gateway.costs.export.columns import Column, Granularity
from gateway.costs.export.row_facts import object_text
from gateway.costs.manual_lines.store import lines_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import SKUS, line_sku, price_id
from gateway.costs.selling.invoices import in_force, read_invoices
from gateway.costs.selling.posted import key_of, tenant_months, tokens_of
from gateway.units import FREE

_COMMITMENT = ("Category", "Id", "Name", "Quantity", "Type", "Unit")
"""Not the status, which stays empty: the 1.2 rules for ConsumedQuantity refer to it."""
WITHHELD = frozenset(
    {
        *("engine", "gpu_hours", "rate_per_gpu_hour", "x_GpuHours"),
        *(f"CommitmentDiscount{name}" for name in _COMMITMENT),
    }
)
"""Columns that a customer's file does not have."""
_PERIODS: dict[Granularity, str] = {"hourly": "Hours", "daily": "Days"}
_METERS = {
    "input": "Input Tokens",
    "cached": "Cached Input Tokens",
    "output": "Output Tokens",
    "reasoning": "Reasoning Tokens",
    "requests": "Requests",
}


BY = (*chargeback.BY, "cost_centre")
"""The customer's own label of who used it is a tag, so that it can charge its departments."""


def columns_for(columns: Iterable[Column]) -> list[Column]:
    return [column for column in columns if column.name not in WITHHELD]


def unlisted(_gpu_type: str, _region: str, _at: int) -> None:
    """The list price of a GPU-hour, for a customer: it is not told."""


@dataclass(frozen=True, slots=True)
class Customer:
    """Whose file it is, and what it is charged: for a closed month, by the cards and rules of its closing."""

    tenant: str
    month: str
    settled: MonthSettlement
    granularity: Granularity = "hourly"

    @classmethod
    def read(
        cls, connection: Connection, tenant: str, month: str, granularity: Granularity = "hourly"
    ) -> Customer:
        return cls(tenant, month, settlement_now(connection, month), granularity)

    @property
    def cards(self) -> RateCards:
        return self.settled.cards

    @property
    def currency(self) -> str:
        return next((card.currency for card in self.cards.cards), "")

    def invoiced(self, connection: Connection, rows: Iterable[Row]) -> Iterable[Row]:
        """The rows with the number of the month's invoice, and of its line, once there is one."""
        invoice = in_force(read_invoices(connection, self.month, self.tenant))
        if invoice is None:
            return rows
        return ({**row, **_on_invoice(invoice.number, row)} for row in rows)

    def card_of(self, line: CostLine) -> RateCard | None:
        """By which a line is charged. The first of its keys is the hour."""
        return self.cards.card(self.tenant, line.keys[0][:7] if line.correction else self.month)

    def charged(self, line: CostLine) -> CostLine:
        """A line without the rate of its GPU, if a card prices it."""
        return line if self.card_of(line) is None else replace(line, rate_micros=FREE)

    def focus(self, charges: Iterable[Charge]) -> Iterator[Row]:
        """Rows from charges grouped by BY."""
        for charge in charges:
            if charge.line.bucket == "usage":
                *keys, centre = charge.line.keys
                plain = replace(charge, line=replace(charge.line, keys=tuple(keys)))
                card = self.card_of(plain.line)
                at_cost = map(self.hidden, chargeback.rows([plain]))
                for row in at_cost if card is None else _priced(plain, card):
                    yield row if not centre else {**row, "Tags": _tagged(row["Tags"], centre)}

    def at_cost(self, allocated: Mapping[str, Allocated]) -> dict[str, Allocated]:
        """Shares of unused time by month: only of months without a card."""
        return {
            month: parts for month, parts in allocated.items() if self.cards.card(self.tenant, month) is None
        }

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
            **unit_price(None),
            **costs(cost.units),
            "CommitmentDiscountStatus": None,
            "SkuPriceDetails": object_text(x_GpuType=row["x_GpuType"]),
            "SkuPriceId": str(row["SkuPriceId"]).rpartition("@")[0],
        }

    def plain(self, line: CostLine, row: Row) -> Row:
        """A ledger line with what is charged for it instead of its cost."""
        card = self.card_of(line)
        if card is None:
            return row
        key = key_of(line, str(row["adapter"] or ""), str(row["base_model"] or ""))
        return {**row, "cost": Fixed(card.list_price(key, tokens_of(line)), 15)}

    def month_rows(self, connection: Connection, book: PriceBook) -> Iterator[Row]:
        """Resident adapters, free allowance and minimum, what corrections changed in these, manual lines,
        and prepaid credits that the month draws."""
        statement = self.settled.settlement.statements.get(self.tenant)
        if statement is None:
            return
        yield from card_rows.of_lines(
            lines_of(connection, self.month).get(self.tenant, ()), self.tenant, self.month
        )
        if prepaid := statement.credits:
            yield from card_rows.of_credits(prepaid.draws, self.tenant, self.month)
        charged = tenant_months(connection, book, self.month, self.cards, {self.tenant: 0}, {}).get(
            self.tenant
        )
        if charged is None:
            return
        if charged.current is not None:
            yield from card_rows.of_month(charged.current, self.tenant, self.month)
        for month, changed in charged.corrections.items():
            yield from card_rows.of_correction(changed, self.tenant, month)


def _on_invoice(number: str, row: Row) -> Row:
    """A line is a SKU, or what is corrected of a month."""
    corrected = f"correction/{str(row['ChargePeriodStart'])[:7]}"
    line = corrected if row["ChargeClass"] == "Correction" else row["SkuId"]
    return {"InvoiceId": number, "InvoiceDetailId": f"{number}/{line}"}


def _tagged(tags: Cell, centre: str) -> str:
    return object_text(**{**json.loads(str(tags)), "florin/cost_centre": centre})


def _one(period: str) -> Row:
    count = Fixed(1, 0)
    return {
        "PricingQuantity": count,
        "PricingUnit": period,
        "ConsumedQuantity": count,
        "ConsumedUnit": period,
    }


def _priced(charge: Charge, card: RateCard) -> Iterator[Row]:
    line = charge.line
    _, tenant, adapter, version, base_model, *_ = line.keys
    name = f"{adapter}@{version}" if adapter else base_model
    requests = line.requests
    tokens, card_line = tokens_of(line), card.line_for(key_of(line, adapter, base_model))
    for price in card_line.prices:
        count = card_line.quantity(price.kind, tokens)
        if not count and not requests:
            continue
        tokens_of_kind = price.kind != "requests"
        yield {
            "ChargePeriodStart": charge.start,
            "ChargePeriodEnd": charge.end,
            "ChargeClass": "Correction" if line.correction else None,
            "ChargeDescription": f"{_METERS[price.kind]} of {name}",
            "ResourceId": name,
            "ResourceName": name,
            "ResourceType": "LoRA Adapter" if adapter else "Base Model",
            **named(tenant),
            **sku(
                card,
                line_sku(SKUS[price.kind], card_line.name),
                price_id(card, price.kind, card_line.name),
                _METERS[price.kind],
            ),
            "PricingQuantity": Fixed(count, 6 if tokens_of_kind else 0),
            "PricingUnit": "1000000 Tokens" if tokens_of_kind else "Requests",
            "ConsumedQuantity": Fixed(count, 0),
            "ConsumedUnit": "Tokens" if tokens_of_kind else "Requests",
            **unit_price(Fixed(price.micros, 6)),
            **costs(price.worth(count, price.micros)),
            "x_Adapter": adapter or None,
            "x_AdapterVersion": version or None,
            "x_BaseModel": base_model or None,
            "x_Bucket": "usage",
            **no_tokens(tenant, requests),
            **({COLUMNS[price.kind]: count} if tokens_of_kind else {}),
        }
        requests = 0  # once per line, so that sums are right
