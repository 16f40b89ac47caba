"""florin cost margin"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from gateway.commands.client import UsageError
from gateway.commands.output import clean, note, note_incomplete, show, table
from gateway.commands.session import Session, command
from gateway.costs.margins.schemas import MarginReport
from gateway.units import shown_cents, shown_money

app = typer.Typer()


@command(app, "margin")
def margin(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-07. Default: this month so far.")
    ] = None,
    by: Annotated[str, typer.Option(help="tenant or adapter.")] = "tenant",
) -> None:
    """Show what each customer pays, what it cost, and the margin. For finance and operators only.

    By adapter, what a customer pays and costs besides (free allowance, minimum, share of unused time,
    corrections) has a row of its own.

    Amounts are rounded as on the statements; --json also has exact decimals.

    Example: florin cost margin --month 2026-07
    """
    if by not in {"tenant", "adapter"}:
        raise UsageError(f"--by {by!r} is not tenant or adapter.")
    params = {"month": month, "by": None if by == "tenant" else by}
    people = _people if by == "tenant" else _adapters
    session.result(session.api.get("/finance/v1/margin", MarginReport, params), people)


def _adapters(body: MarginReport) -> None:
    if not body.rows:
        note(f"No usage in {clean(body.month)}.")
        note_incomplete(body)
        return
    currency = clean(body.currency or "")
    money = partial(shown_money, currency=body.currency)
    columns = ("tenant", "adapter", f"price {currency}", "cost", "margin", "margin %")
    rows = [
        (
            r.tenant, _name(r.adapter), money(r.price), money(r.cost), money(r.margin),
            r.margin_percent,
        )
        for r in body.adapters or ()
    ]  # fmt: skip  # as the columns
    show(table(columns, rows, right=columns[2:]))
    _remarks(body)


def _name(adapter: str | None) -> str:
    """An empty one is the base model."""
    return "(not by adapter)" if adapter is None else adapter or "(base model)"


def _people(body: MarginReport) -> None:
    if not body.rows:
        note(f"No usage in {clean(body.month)}.")
        note_incomplete(body)
        return
    currency = clean(body.currency or "")
    cents = partial(shown_cents, currency=body.currency)
    columns = (
        "tenant", "rate card", f"price {currency}", "cost excluding unused time", "cost of unused time",
        "margin", "margin %",
    )  # fmt: skip  # one name a line says no more
    rows: list[tuple[object, ...]] = [
        (
            r.tenant, r.rate_card or "none: cost", cents(r.amount_cents),
            cents(_less(r.cost_cents, r.unused_time_cents)), cents(r.unused_time_cents),
            cents(_less(r.amount_cents, r.cost_cents)), r.margin_percent,
        )
        for r in body.rows
    ]  # fmt: skip  # as above
    unpaid, totals = body.not_charged_cents, body.totals
    retries, unused = unpaid.retry_waste, unpaid.unallocated
    left = _less(totals.price_cents, totals.cost_cents)
    price = cents(totals.price_cents)
    rows += [
        ("",) * len(columns),
        ("not charged: retries", "", "", cents(retries), "", cents(_less(0, retries)), ""),
        ("not charged: unused time", "", "", "", cents(unused), cents(_less(0, unused)), ""),
        ("total", "", price, "", "", cents(left), totals.margin_percent),
    ]
    show(
        table(
            columns, [[Text("") if cell == "" else cell for cell in row] for row in rows], right=columns[2:]
        )
    )
    _remarks(body)


def _remarks(body: MarginReport) -> None:
    if body.state != "closed":
        note(f"{clean(body.month)} is open: figures may change.")
    if body.missing_prices:
        note(f"No GPU price for {clean(body.missing_prices)}: its cost and margin are unknown.")
    note_incomplete(body)


def _less(amount: int | None, part: int | None) -> int | None:
    """Subtract cents that the statements are rounded to, so that rows and columns add up."""
    return None if amount is None or part is None else amount - part
