"""A cost report for a customer's own key: what it is charged, and nothing from which it could compute what a
GPU costs.

Without a rate card, costs are as in the operator's report, without the GPU time that they are for. With one,
`cost` is the price of the row's tokens, before the month's free allowance and minimum, which are on the
statement; `priced_by` says which of both it is.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection

from gateway.costs.closing.charging import units
from gateway.costs.cost_lines import CostLine
from gateway.costs.export.writers import write_csv, write_parquet
from gateway.costs.periods import month, months
from gateway.costs.prices.amounts import decimal_text
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.converted import in_currency
from gateway.costs.reports.flat_table import FileFormat, columns, constants, rows
from gateway.costs.reports.recomputed import is_pair, own_lines
from gateway.costs.reports.report import Question, cost_report, set_apart
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.cards import RateCards
from gateway.costs.selling.charges import Tokens, list_price
from gateway.costs.selling.posted import tokens_of
from gateway.metering.ledger.ledger import Ledger

HIDDEN_DIMENSIONS = frozenset({"engine"})
_HIDDEN = frozenset(
    {
        *("gpu_seconds", "gpu_hours", "nano_gpu_hours", "allocated_nano_gpu_hours", "allocated_gpu_hours"),
        *("calibrations", "engine", "unpriced_gpu_hours"),
    }
)
_AT_COST = frozenset(
    {
        *("allocated_cost", "amount_cents", "allocated_amount_cents", "billed_cents"),
        *("allocated_nano_gpu_hours", "priced_cost"),
    }
)
"""Figures of a report that say what the cost-based settlement bills."""


def customer_text(
    ledger: Ledger, question: Question, *, now: int, tenant: str, currency: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Like `report_text`, for the tenant."""
    report = without_gpu_time(_report(ledger, question, now=now, tenant=tenant, currency=currency))
    beside = set_apart(report)
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")), beside


def customer_file(
    ledger: Ledger,
    question: Question,
    kind: FileFormat,
    *,
    now: int,
    tenant: str,
    currency: str | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """Like `report_file`, for the tenant."""
    report = _report(ledger, question, now=now, tenant=tenant, currency=currency)
    file = io.BytesIO()
    write = write_csv if kind == "csv" else write_parquet
    shown = [column for column in columns(report) if column.name not in _HIDDEN]
    count = write(file, shown, constants(report), rows(report))
    return file.getvalue(), {"complete": report["complete"], "next": report["next"], "rows": count}


def without_gpu_time(value: Any) -> Any:
    """A document without the figures that are not for customers, at any depth."""
    if isinstance(value, dict):
        return {name: without_gpu_time(part) for name, part in value.items() if name not in _HIDDEN}
    if isinstance(value, list):
        return [without_gpu_time(part) for part in value]
    return value


def _report(
    ledger: Ledger, question: Question, *, now: int, tenant: str, currency: str | None
) -> dict[str, Any]:
    report = cost_report(ledger, question, now=now)
    with ledger.read() as connection:
        cards = read_cards(connection)
        if _has_card(cards, tenant, question):
            report = _priced(connection, cards, tenant, question, report)
        else:
            report |= {"priced_by": "cost"}
        return report if currency is None else in_currency(connection, report, currency, now, tenant=tenant)


def _has_card(cards: RateCards, tenant: str, question: Question) -> bool:
    """Whether a card may price a part of the report: one is assigned before its end."""
    ends = {a.valid_from for a in cards.assignments if a.tenant in {tenant, ""} and a.card}
    return any(month(first).start < question.period.end for first in ends)


def _priced(
    connection: Connection, cards: RateCards, tenant: str, question: Question, report: dict[str, Any]
) -> dict[str, Any]:
    """The report with prices instead of costs. Rows are read again by time, because cards change by month."""
    book = PriceBook(read_prices(connection))
    posted = None if is_pair(question.by) or question.local else months(question.period)
    # Cards change with months of UTC, and days may be local ones.
    at = "day" if question.local is None else "hour"
    costs: defaultdict[tuple[str, ...], int | None] = defaultdict(int)
    found = own_lines(
        connection, book, question.period, (*question.by, at),
        tenants=question.tenants, posted=posted is not None, local=question.local,
    )  # fmt: skip  # as the call reads
    for line in found:
        if line.bucket == "usage":
            amount = _amount(line, cards, tenant)
            for key in (line.keys[:-1], ()):
                held = costs[key]
                costs[key] = None if held is None or amount is None else held + amount
    report["rows"] = [_put(row, costs[tuple(row[name] for name in report["by"])]) for row in report["rows"]]
    report["totals"] = _put(report["totals"], costs[()])
    waste, corrections = report["retry_waste"], report["corrections"]
    report["retry_waste"] = {
        "rows": [_put(row, 0) for row in waste["rows"]],
        "totals": _put(waste["totals"], 0),
    }
    report["corrections"] = _corrections(corrections, cards, tenant)
    return {
        **{name: value for name, value in report.items() if name not in _AT_COST},
        "currency": cards.cards[0].currency if cards.cards else report["currency"],
        "missing_prices": [] if costs[()] is not None else report["missing_prices"],
        "policy": "none",
        "priced_by": "rate_card",
    }


def _amount(line: CostLine, cards: RateCards, tenant: str) -> int | None:
    card = cards.card(tenant, line.keys[-1][:7])
    return line.cost if card is None else list_price(card, tokens_of(line))


def _corrections(part: dict[str, Any], cards: RateCards, tenant: str) -> dict[str, Any]:
    priced: list[tuple[dict[str, Any], int]] = []
    for row in part["rows"]:
        card = cards.card(tenant, row["month"])
        if card is not None:
            tokens = Tokens(
                row["prompt_tokens"] - row["cached_tokens"], row["cached_tokens"], row["completion_tokens"]
            )
            priced.append((row, list_price(card, tokens) if row["bucket"] == "usage" else 0))
        else:
            priced.append((row, units(row["cost"] or "0")))
    made = [_put(row, amount) for row, amount in priced]
    return {"rows": made, "totals": _put(part["totals"], sum(amount for _, amount in priced))}


def _put(row: dict[str, Any], amount: int | None) -> dict[str, Any]:
    made = {name: value for name, value in row.items() if name not in _AT_COST}
    return {**made, "cost": None if amount is None else decimal_text(amount, 15)}
