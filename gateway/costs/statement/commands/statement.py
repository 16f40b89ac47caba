"""florin cost statement, invoice"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.download import download
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say
from gateway.commands.session import Session, command
from gateway.costs.selling.schemas import Invoice, NewInvoice

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
) -> None:
    """Write a tenant's monthly statement: a page that prints on one sheet of A4, or its figures. With
    --by, also who within the tenant used it: the parts sum to the amount.

    With a rate card it shows prices, without one what the usage cost. Preliminary until the month is closed.

    Example: florin cost statement --tenant acme --month 2026-07
    """
    if kind not in _FORMATS:
        raise UsageError(f"--format {kind!r} is not one of {', '.join(_FORMATS)}.")
    path = output or Path(f"{tenant}-{month}.{kind}".replace("/", "-"))
    params = {"month": month} | ({"format": kind} if kind != "html" else {})
    params |= {} if currency is None else {"currency": currency}
    params |= {} if by is None else {"by": by}
    saved = download(session.api, f"/finance/v1/statements/{segment(tenant)}", params, path)
    body = {"file": str(path), "bytes": saved.size, "tenant": tenant, "month": month}
    session.result(body, lambda _: note(f"{path}: {saved.size:,} bytes."))


@command(app, "invoice")
@with_options(NewInvoice)
def invoice(session: Session, *, changes: Json) -> None:
    """Put an invoice's number, tax and due date on a tenant's statement of a closed month.

    Repeat it to replace them; the earlier ones stay in the audit log.

    Example: florin cost invoice --tenant acme --month 2026-07 --number 2026-0117 --tax-percent 19
    """
    session.result(
        session.api.post("/finance/v1/invoices", changes, Invoice),
        lambda invoice: say(
            f"The statement of {clean(invoice.tenant)} for {clean(invoice.month)} has invoice number "
            f"{clean(invoice.number)}."
        ),
    )
