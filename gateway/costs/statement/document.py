"""A statement's figures as a document, for programs: the same as on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from gateway.costs.periods import iso
from gateway.costs.statement.division import Division
from gateway.costs.statement.items import Item
from gateway.costs.statement.statement_figures import Statement

COMPLETE: Final[Mapping[str, Any]] = MappingProxyType({"complete": True, "reasons": []})


def document(
    statement: Statement,
    *,
    issuer: str,
    now: int,
    labels: Mapping[str, str],
    completeness: Mapping[str, Any] = COMPLETE,
) -> dict[str, Any]:
    """Amounts are in hundredths of the currency; `exact` ones of a rate card are decimals. `now`: date of a
    preliminary statement. `labels`: of keys. `completeness`: what a preliminary one says of what it lacks."""
    closed, invoice = statement.period_hash, statement.invoice
    tax = statement.tax_cents
    return {
        "statement": f"{statement.month}/{statement.tenant}",
        "issuer": issuer,
        "tenant": statement.tenant,
        "month": statement.month,
        "from": iso(statement.period.start),
        "to": iso(statement.period.end),
        "state": "final" if closed else "preliminary",
        **(COMPLETE if closed else completeness),
        "dated": iso(closed.closed_at if closed else now),
        "currency": statement.currency or None,
        "converted_from": None if statement.converted is None else statement.converted.document(),
        "basis": "rate_card" if statement.charges and statement.charges.card else "cost",
        "amount_cents": statement.cents,
        "tax_cents": tax,
        "total_cents": statement.cents + tax,
        "invoice": None if invoice is None else invoice.document(),
        "charges": statement.charges_document,
        "manual_lines": [line.document() for line in statement.manual],
        **({} if statement.credits is None else {"credits": statement.credits.document()}),
        "usage": _items(statement.usage),
        "unused_time_cents": sum(item.cents for item in statement.allocated),
        "corrections": [
            {**row, "month": item.month, "reason": item.reason}
            for row, item in zip(_items(statement.corrections), statement.corrections, strict=True)
        ],
        **({} if statement.division is None else {"division": _division(statement.division, labels)}),
        "attempts_not_charged": statement.retries,
        "seal": closed.root if closed else None,
        "records": closed.records if closed else None,
        "seal_of_records": (closed.tenant_root or None) if closed else None,
    }


def _division(division: Division, labels: Mapping[str, str]) -> dict[str, Any]:
    """Its amounts sum to the statement's."""
    rows = [{n: v for n, v in row.items() if n != "gpu"} for row in _items(division.parts)]
    if division.dimension == "key":
        rows = [{**row, "label": labels.get(row["name"], "")} for row in rows]
    return {
        "by": division.dimension,
        "rows": rows,
        "unused_time_cents": division.unused_cents,
        "other_cents": division.other_cents,
    }


def _items(items: Iterable[Item]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "gpu": item.gpu or None,
            "requests": item.requests,
            "input_tokens": item.all_input,
            "cached_tokens": item.cached_tokens,
            "output_tokens": item.output_tokens,
            "amount_cents": item.cents,
        }
        for item in items
    ]
