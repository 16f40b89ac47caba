"""A cost report for a customer's own key: what it is charged, and nothing from which it could compute what a
GPU costs.

Without a rate card, costs are as in the operator's report, without the GPU time that they are for. With one,
`cost` is the price of the row's tokens, before the month's free allowance and minimum, which are on the
statement; `priced_by` says which of both it is. Nothing of an earlier tenant of the same name is in it: a
report over hours that were that one's begins later, and shows its hours as known now.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.export.writers import write_csv, write_parquet
from gateway.costs.owner import Owner, report_start
from gateway.costs.periods import LocalTime, Period, local_time, month_of, zone
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.converted import in_currency
from gateway.costs.reports.flat_table import FileFormat, columns, constants, rows
from gateway.costs.reports.recomputed import own_lines
from gateway.costs.reports.report import ROLL_SECONDS, Question, lists_of, read_report, set_apart
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.posted import PRICED_BY, key_of, tokens_of
from gateway.metering.ledger.ledger import Ledger
from gateway.units import HOUR, NOTHING, Amount, amount_of, amount_text, total

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
    ledger: Ledger, question: Question, *, now: int, owner: Owner, currency: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Like `report_text`, for the tenant."""
    report = without_gpu_time(_report(ledger, question, now=now, owner=owner, currency=currency))
    beside = set_apart(report)
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")), beside


def customer_file(
    ledger: Ledger,
    question: Question,
    kind: FileFormat,
    *,
    now: int,
    owner: Owner,
    currency: str | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """Like `report_file`, for the tenant."""
    report = _report(ledger, question, now=now, owner=owner, currency=currency)
    file = io.BytesIO()
    write = write_csv if kind == "csv" else write_parquet
    shown = [column for column in columns(report) if column.name not in _HIDDEN]
    count = write(file, shown, constants(report), rows(report))
    beside = {"complete": report["complete"], "next": report["next"], "lists": lists_of(report)}
    return file.getvalue(), {**beside, "rows": count}


def without_gpu_time(value: Any) -> Any:
    """A document without the figures that are not for customers, at any depth."""
    if isinstance(value, dict):
        return {name: without_gpu_time(part) for name, part in value.items() if name not in _HIDDEN}
    if isinstance(value, list):
        return [without_gpu_time(part) for part in value]
    return value


def _report(
    ledger: Ledger, question: Question, *, now: int, owner: Owner, currency: str | None
) -> dict[str, Any]:
    rolled = roll(ledger, now, patience=ROLL_SECONDS)
    with ledger.read() as connection:
        report = read_charged(connection, question, owner)
        if currency is not None:
            report = in_currency(connection, report, currency, now, tenant=owner.tenant)
    return {**report, "complete": rolled.pending == 0}


def read_charged(
    connection: Connection, question: Question, owner: Owner, cards: RateCards | None = None
) -> dict[str, Any]:
    """`read_report` for the tenant. `cards`: other than those that it has."""
    question = _begun(connection, question, owner)
    report = read_report(connection, question)
    cards = read_cards(connection) if cards is None else cards
    if _has_card(cards, owner.tenant, question):
        return _priced(connection, cards, owner.tenant, question, report)
    return report | {"priced_by": "cost"}


def _begun(connection: Connection, question: Question, owner: Owner) -> Question:
    """The question without what an earlier tenant of the name used."""
    start = report_start(connection, owner, question.period, question.months)
    if start is None:
        return question
    rest = Period(start, max(start, question.period.end))
    local = question.local and _local(rest, question.local)
    period = local.within if local is not None and local.cuts else rest
    return replace(question, period=period, local=local, as_posted=False)


def _local(rest: Period, local: LocalTime) -> LocalTime | None:
    """The same timezone in the rest of the period. Its whole hours begin no earlier."""
    tz = zone(local.timezone)
    begun = local_time(rest, tz)
    if begun is None or begun.within.start >= rest.start:
        return begun
    start = begun.within.start + HOUR
    return local_time(Period(start, max(start, rest.end)), tz)


def _has_card(cards: RateCards, tenant: str, question: Question) -> bool:
    """Whether a card may price a part of the report: one is assigned before its end."""
    ends = {a.valid_from for a in cards.assignments if a.tenant in {tenant, ""} and a.card}
    return any(month_of(first).start < question.period.end for first in ends)


def _priced(
    connection: Connection, cards: RateCards, tenant: str, question: Question, report: dict[str, Any]
) -> dict[str, Any]:
    """The report with prices instead of costs. Rows are read again by time, because cards change by month."""
    book = PriceBook(read_prices(connection))
    posted = question.months
    # Cards change with months of UTC, and days may be local ones.
    time_dimension = "day" if question.local is None else "hour"
    costs: defaultdict[tuple[str, ...], Amount | None] = defaultdict(lambda: NOTHING)
    lines = own_lines(
        connection, book, question.period, (*question.by, *PRICED_BY, time_dimension),
        tenants=question.tenants, posted=posted is not None, local=question.local,
    )  # fmt: skip  # as the call reads
    for line in lines:
        if line.bucket == "usage":
            amount = _amount(line, cards, tenant)
            for key in (line.keys[: len(question.by)], ()):
                before = costs[key]
                costs[key] = None if before is None or amount is None else Amount(before + amount)
    corrected: defaultdict[tuple[str, ...], Amount] = defaultdict(lambda: NOTHING)
    if posted is not None:  # otherwise they are included in the hours as known now
        for line in read_lines(
            connection, book, question.period, (*question.by, *PRICED_BY, "day"),
            tenants=question.tenants, corrections=True,
        ):  # fmt: skip  # as the call reads
            if line.bucket == "usage":
                key = (line.keys[-1][:7], *line.keys[: len(question.by)])
                corrected[key] = Amount(corrected[key] + (_amount(line, cards, tenant) or 0))
    report["rows"] = [_put(row, costs[tuple(row[name] for name in report["by"])]) for row in report["rows"]]
    report["totals"] = _put(report["totals"], costs[()])
    waste, corrections = report["retry_waste"], report["corrections"]
    report["retry_waste"] = {
        "rows": [_put(row, NOTHING) for row in waste["rows"]],
        "totals": _put(waste["totals"], NOTHING),
    }
    report["corrections"] = _corrections(corrections, question.by, cards, tenant, corrected)
    return {
        **{name: value for name, value in report.items() if name not in _AT_COST},
        "currency": cards.cards[0].currency if cards.cards else report["currency"],
        "missing_prices": [] if costs[()] is not None else report["missing_prices"],
        "policy": "none",
        "priced_by": "rate_card",
    }


def _amount(line: CostLine, cards: RateCards, tenant: str) -> Amount | None:
    *_, adapter, base_model, time = line.keys
    card = cards.card(tenant, time[:7])
    return line.cost if card is None else card.list_price(key_of(line, adapter, base_model), tokens_of(line))


def _corrections(
    part: dict[str, Any],
    by: Sequence[str],
    cards: RateCards,
    tenant: str,
    prices: Mapping[tuple[str, ...], Amount],
) -> dict[str, Any]:
    """`prices`: of the corrected usage, by month and `by`."""
    priced: list[tuple[dict[str, Any], Amount]] = []
    for row in part["rows"]:
        if cards.card(tenant, row["month"]) is None:
            amount = amount_of(row["cost"] or "0")
        elif row["bucket"] == "usage":
            amount = prices.get((row["month"], *(row[name] for name in by)), NOTHING)
        else:
            amount = NOTHING
        priced.append((row, amount))
    return {
        "rows": [_put(row, amount) for row, amount in priced],
        "totals": _put(part["totals"], total(amount for _, amount in priced)),
    }


def _put(row: dict[str, Any], amount: Amount | None) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in _AT_COST}
    return {**shown, "cost": None if amount is None else amount_text(amount)}
