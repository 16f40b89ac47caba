"""The lines of a cost report from the provisioned GPU cost at list price to what the month costs."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rich.text import Text

from gateway.commands.output import clean, show, table
from gateway.costs.reports.commands.rounding import cents_of, places_for, rounded
from gateway.costs.reports.schemas.costs import Figures, InvoicedCost, InvoiceLine
from gateway.units import places_of, shown

_ENDS = {"trued_up": "invoice", "expected": "expected at least"}


def show_invoice(invoice: InvoicedCost, listed: Figures, currency: str | None) -> None:
    """`listed`: the cost at list price."""
    heads, end = ("GPU-hours", f"cost {currency}"), Text(_ENDS[invoice.state], "bold")
    *amounts, total = _amounts([listed, *invoice.lines, invoice], currency)
    rows: list[list[str | Text]] = [[Text("provisioned GPU cost at list price"), "", amounts[0]]]
    for line, amount in zip(invoice.lines, amounts[1:], strict=True):
        hours = Decimal(line.gpu_hours)
        sign = "" if amount.startswith("-") else "+"
        rows.append([Text(f"  {clean(line.reason)}"), shown(hours, 3) if hours else "", sign + amount])
    rows.append([end, "", total])
    show(Text())
    cells = [[cell or Text("") for cell in row] for row in rows]  # not a dash
    show(table(("from list price", *heads), cells, right=heads))


def _amounts(parts: Sequence[Figures | InvoiceLine | InvoicedCost], currency: str | None) -> list[str]:
    """The last is the sum of the others, also as they are rounded."""
    costs = [Decimal(part.cost or 0) for part in parts]
    places = places_for(costs, currency)
    cents = [cents_of(part.amount_cents) for part in parts]
    if places == places_of(currency) == 2 and None not in cents:
        return [shown(amount, places) for amount in cents]
    return [shown(amount, places) for amount in (*rounded(costs[:-1], costs[-1], places), costs[-1])]
