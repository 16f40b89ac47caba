"""Issues final statements, and shows them as they were issued.

An invoice stores its statement in each form, byte for byte. It does not change: not by a later exchange rate,
not by another version of Florin. What has to change is issued anew, with a number of its own and a reason: a
corrected invoice, which shows the whole statement at the newest exchange rate of the month's end, or a credit
note, which takes an amount off an invoice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final, Literal

from sqlalchemy import Connection, insert, select

from gateway.costs.periods import iso
from gateway.costs.selling.invoices import Invoice, check_new, in_force, read_invoices, read_numbered
from gateway.costs.statement.page import (
    StatementIn,
    as_csv,
    statement_csv,
    statement_json,
    statement_page,
    template,
)
from gateway.costs.statement.statement_figures import read_statement
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import invoice_documents, invoices
from gateway.units import Cents

Form = Literal["html", "json", "csv"]


class UnknownNumberError(Exception):
    """The tenant has no invoice or credit note of that number in that month."""


def issue(ledger: Ledger, new: Invoice, *, issuer: str, actor: str = "") -> tuple[Invoice, bool]:
    """Issue an invoice, a corrected invoice or a credit note. `new`: without an amount, unless it is a credit
    note; without a currency, it is in that of the invoice that it corrects, or in the price book's. Returns
    it, and False if the same was issued already.

    Raises RateCardConflictError, ExchangeRateError, LedgerUnavailableError."""
    with ledger.read() as connection:
        new = _taxed(connection, new)
        if (same := check_new(connection, new)) is not None:
            return same, False
        new, documents = _documents(connection, new, issuer)
    with ledger.write() as connection:
        next_batch(connection)  # one after the other
        if (same := check_new(connection, new)) is not None:
            return same, False
        connection.execute(insert(invoices), [asdict(new)])
        rows = [{"number": new.number, "form": form, "content": text} for form, text in documents.items()]
        connection.execute(insert(invoice_documents), rows)
        seal(connection, "invoice", new.month, new.tenant)
        seal(connection, "document", new.number)
        digests = {form: hashlib.sha256(text.encode()).hexdigest() for form, text in documents.items()}
        details = {**new.document(), "sha256": digests}
        record(connection, actor, "invoice.add", f"{new.month}/{new.tenant}", details, new.recorded_at)
        return new, True


def _taxed(connection: Connection, new: Invoice) -> Invoice:
    """A credit note has its invoice's tax."""
    corrected = read_numbered(connection, new.corrects) if new.kind == "credit_note" else None
    if corrected is None:
        return new
    return replace(new, tax_name=corrected.tax_name, tax_micros=corrected.tax_micros, due="")


def _documents(connection: Connection, new: Invoice, issuer: str) -> tuple[Invoice, dict[Form, str]]:
    """The invoice with its currency and amount, and what it shows."""
    standing = in_force(read_invoices(connection, new.month, new.tenant))
    currency = new.currency or (standing.currency if standing else "")
    statement = read_statement(
        connection,
        new.tenant,
        new.month,
        known=True,
        currency=currency or None,
        now=new.recorded_at,
        issuing=new if new.kind != "credit_note" else standing,
    )
    assert statement is not None, "it is known"
    new = replace(new, currency=statement.currency)
    if new.kind == "credit_note":
        return new, _credit_note(new, issuer)
    new = replace(new, amount_cents=statement.cents)
    issued = replace(statement, invoice=new)
    return new, {
        form: _text(kind.render(issued, issuer=issuer, now=new.recorded_at, labels={}))
        for form, kind in _AS.items()
    }


_AS: Final[Mapping[Form, StatementIn[Any]]] = {
    "html": statement_page,
    "json": statement_json,
    "csv": statement_csv,
}


def _text(content: Any) -> str:
    if isinstance(content, bytes):
        return content.decode()
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _credit_note(note: Invoice, issuer: str) -> dict[Form, str]:
    cents = note.amount_cents or Cents(0)
    tax = note.tax_cents(cents)
    page = template("credit_note.html.j2").render(
        note=note, issuer=issuer, tax=tax, dated=iso(note.recorded_at)[:10]
    )
    content = {"issuer": issuer, **note.document()}
    about = {
        "statement": f"{note.month}/{note.tenant}",
        "state": "final",
        "currency": note.currency,
        "invoice": note.document(),
        "tax_cents": tax,
        "total_cents": cents + tax,
    }
    line = {"kind": "credit_note", "amount_cents": note.amount_cents, "name": note.reason}
    return {"html": page, "json": _text(content), "csv": as_csv({**about, "credit": line})}


def show(
    ledger: Ledger,
    /,
    tenant: str,
    month: str,
    *,
    form: Form,
    number: str | None = None,
    **question: Any,
) -> str | None:
    """The statement of a tenant and a month: as it was issued, or else as it is now. If the tenant has
    nothing in that month: an empty statement if it is `known`, else None. `number`: of an invoice or credit
    note; otherwise the invoice that counts, unless another currency or a division is asked for. For the
    others, see `StatementIn`.

    Raises UnknownNumberError, PeriodError, MissingPriceError, ExchangeRateError, LedgerUnavailableError."""
    with ledger.read() as connection:
        issued = _issued(connection, tenant, month, form, number)
        other = question.get("currency"), question.get("by")
    if issued is not None:
        if number is not None or other in {(None, None), (issued[0].currency, None)}:
            return issued[1]
        question["currency"] = other[0] or issued[0].currency
    content = _AS[form](ledger, tenant, month, **question)
    return None if content is None else _text(content)


def _issued(
    connection: Connection, tenant: str, month: str, form: Form, number: str | None
) -> tuple[Invoice, str] | None:
    """None: nothing was issued, or by an earlier version, which stored no document."""
    known = read_invoices(connection, month, tenant)
    invoice = in_force(known) if number is None else next((i for i in known if i.number == number), None)
    if invoice is None:
        if number is not None:
            raise UnknownNumberError(f"{tenant} has no invoice or credit note {number[:60]!r} for {month}.")
        return None
    table = invoice_documents.c
    query = select(table.content).where(table.number == invoice.number, table.form == form)
    content: str | None = connection.execute(query).scalar_one_or_none()
    return None if content is None else (invoice, content)
