"""florin cost statement, statements, invoice, invoices"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import Json, UsageError, segment
from gateway.commands.download import download
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, note_incomplete, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.closing.commands.preview import money
from gateway.costs.closing.schemas import Month
from gateway.costs.selling.schemas import Invoice, NewInvoice
from gateway.schemas.base import Listed

app = typer.Typer()

_FORMATS = ("html", "json", "csv")


@command(app, "statement")
def statement(
    session: Session,
    *,
    tenant: Annotated[str, typer.Option(help="The tenant.")],
    month: Annotated[str, typer.Option(help="Month in UTC, for example 2026-07.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: TENANT-MONTH.html.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html: a page; json: its figures; csv: a table.")
    ] = "html",
    by: Annotated[
        str | None,
        typer.Option(
            help="Also divide the amount by key, end_user, tag, cost_centre or service_tier.",
            show_default=False,
        ),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(
            help="Convert, for example to EUR, at the exchange rate of the month's end: see florin "
            "exchange-rate.",
            show_default=False,
        ),
    ] = None,
    number: Annotated[
        str | None,
        typer.Option(
            help="Of an invoice or credit note. Default: the invoice that counts.", show_default=False
        ),
    ] = None,
) -> None:
    """Write a tenant's monthly statement: a page that prints on one sheet of A4, or its figures. With
    --by, also who within the tenant used it: the parts sum to the amount.

    With a rate card it shows prices, without one what the usage cost. Preliminary until the month is closed;
    once it was issued as an invoice, always the same.

    Example: florin cost statement --tenant acme --month 2026-07
    """
    if kind not in _FORMATS:
        raise UsageError(f"--format {kind!r} is not one of {', '.join(_FORMATS)}.")
    path = output or Path(f"{tenant}-{month}.{kind}".replace("/", "-"))
    params = {"month": month} | ({"format": kind} if kind != "html" else {})
    params |= {} if currency is None else {"currency": currency}
    params |= {} if by is None else {"by": by}
    params |= {} if number is None else {"number": number}
    saved = download(session.api, f"/finance/v1/statements/{segment(tenant)}", params, path)
    body = {"file": str(path), "bytes": saved.size, "tenant": tenant, "month": month}
    body |= saved.completeness.model_dump(exclude_defaults=True)
    session.result(body, lambda _: note(f"{path}: {saved.size:,} bytes."))
    note_incomplete(saved.completeness)


@command(app, "statements")
def statements(
    session: Session,
    *,
    month: Annotated[str, typer.Option(help="Closed month in UTC, for example 2026-07.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write to; made if need be.")],
    kind: Annotated[str, typer.Option("--format", help="html: pages; json: figures; csv: tables.")] = "html",
) -> None:
    """Write the statements of all customers of a closed month to a directory, a file each. Print pages to PDF
    with a browser: each fits on a sheet of A4.

    Example: florin cost statements --month 2026-07 --output statements/
    """
    if kind not in _FORMATS:
        raise UsageError(f"--format {kind!r} is not one of {', '.join(_FORMATS)}.")
    period = session.api.get(f"/finance/v1/periods/{segment(month)}", Month)
    if period.state != "closed":
        raise UsageError(f"{month} is not closed: its statements can still change.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output: cannot make {output} ({error.strerror}).") from error
    files = []
    for sums in period.statements or ():
        path = output / f"{sums.tenant}-{month}.{kind}".replace("/", "-")
        params = {"month": month} | ({"format": kind} if kind != "html" else {})
        download(session.api, f"/finance/v1/statements/{segment(sums.tenant)}", params, path)
        files.append(str(path))
    body = {"month": month, "files": files}
    session.result(body, lambda _: note(f"{output}: {counted(len(files), 'statement')}."))


@command(app, "invoice")
@with_options(NewInvoice)
def invoice(session: Session, *, changes: Json) -> None:
    """Issue a tenant's statement of a closed month as an invoice, with its number, tax and due date. It does
    not change any more.

    To change something, issue a corrected invoice (--corrects, --reason and a number of its own), which
    replaces the earlier one, or with --credit a credit note, which takes an amount off it.

    Example: florin cost invoice --tenant acme --month 2026-07 --number 2026-0117 --tax-percent 19
    """
    session.result(session.api.post("/finance/v1/invoices", changes, Invoice), _issued)


def _issued(invoice: Invoice) -> None:
    statement = f"the statement of {clean(invoice.tenant)} for {clean(invoice.month)}"
    amount = money(invoice.total_cents, invoice.currency)
    if invoice.kind == "credit_note":
        say(f"Credit note {clean(invoice.number)} on invoice {clean(invoice.corrects)}: {amount}.")
    elif invoice.corrects:
        say(f"Invoice {clean(invoice.number)} replaces {clean(invoice.corrects)}: {statement}, {amount}.")
    else:
        say(f"Invoice {clean(invoice.number)}: {statement}, {amount}.")


_KINDS = {"invoice": "invoice", "corrected_invoice": "corrected invoice", "credit_note": "credit note"}


@command(app, "invoices")
def invoices(
    session: Session,
    *,
    month: Annotated[str | None, typer.Option(help="Only of this month.", show_default=False)] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.", show_default=False)] = None,
) -> None:
    """List invoices, corrected invoices and credit notes. A customer's key sees its own.

    Example: florin cost invoices --month 2026-07
    """
    params = {"month": month, "tenant": tenant}
    session.result(session.api.get("/finance/v1/invoices", Listed[Invoice], params), _listed)


def _listed(invoices: Listed[Invoice]) -> None:
    if not invoices.data:
        note("No invoice yet: florin cost invoice")
        return
    columns = (
        "number",
        "kind",
        "tenant",
        "month",
        "before tax",
        "total",
        "due",
        "issued",
        "corrects",
        "reason",
    )
    rows = [
        (
            i.number, _KINDS[i.kind], i.tenant, i.month, money(i.amount_cents, i.currency),
            money(i.total_cents, i.currency), i.due, i.recorded_at[:10], i.corrects, i.reason,
        )
        for i in invoices.data
    ]  # fmt: skip  # as the columns
    show(table(columns, rows, right=("before tax", "total")))
