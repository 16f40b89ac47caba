"""What closing a month would bill: shown before the question, and by `florin cost close --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from adapters.wording import counted
from gateway.commands.output import clean, facts, note, show, table
from gateway.costs.closing.documents import (
    BatchDiscount,
    Charge,
    CorrectionCharge,
    CostCharge,
    DedicatedCharge,
    DiscountCharge,
    MinimumCharge,
    RequestCharge,
    ResidencyCharge,
    StatementLine,
    TokenCharge,
)
from gateway.costs.closing.schemas import ClosingPreview, PreviewedStatement
from gateway.costs.policies.commands.shares import policy_in_words
from gateway.units import gpu_hours_text, hours_text, micros_text, shown, shown_cents

_MOST = 20
"""Customers to name before the question."""
COST, CHARGED = "cost of customers", "charged to customers"
"""What customers' requests cost, with their shares of unused time; and what they are charged for it."""
_HEADS = ("customer", "what", "GPU", "requests", "GPU-hours", "amount")


def money(cents: int | None, currency: str | None) -> str | None:
    return None if cents is None else f"{shown_cents(cents, currency)} {currency or ''}".strip()


def question(preview: ClosingPreview) -> str:
    """What a person agrees to."""
    charged = _charged(preview)
    customers = counted(len(preview.statements), "customer")
    policy = clean(policy_in_words(preview))
    bill = ", with the above of its bill not accepted" if preview.unaccepted else ""
    return (
        f"Close {clean(preview.month)} with policy {policy}{bill}: {charged} for {customers}? This cannot be "
        "undone."
    )


def _charged(preview: ClosingPreview) -> str | None:
    return money(sum(statement.due_cents for statement in preview.statements), preview.currency)


def _by_card(statement: PreviewedStatement, currency: str | None) -> str:
    if statement.charges is None:
        return ""
    cost = money(statement.amount_cents, currency)
    return f" by rate card {clean(statement.card or '')} (cost {cost})"


def announce(preview: ClosingPreview, *, force: bool) -> None:
    """What the question is about: amounts, and what stays open."""
    currency, month = preview.currency, clean(preview.month)
    how = "the standing policy" if preview.standing else "not by the standing policy, but by"
    note(f"{month}: unused GPU time is shared by {how}: {clean(policy_in_words(preview))}.")
    for statement in preview.statements[:_MOST]:
        amount = money(statement.due_cents, currency)
        note(f"  {clean(statement.tenant)}: {amount}{_by_card(statement, currency)}")
    if (more := len(preview.statements) - _MOST) > 0:
        note(f"  and {more:,} more: florin cost close {month} --dry-run shows all.")
    left = ", ".join(f"{name} {amount}" for name, amount in _unbilled(preview))
    note(f"Cost that no customer bears: {left}.")
    note("Later months stay open: late records and new prices become corrections there.")
    for series in preview.missing_prices:
        note(f"Stays open: {clean(series)} has no price and costs nothing until one is added.")
    if force:
        note("Closing early: records that workers have not shipped yet become corrections in the next month.")
    _obstacles(preview)


def _obstacles(preview: ClosingPreview) -> None:
    for sentence in preview.unaccepted:
        note(f"Not reconciled: {clean(sentence)}")
    for obstacle in preview.obstacles:
        note(f"In the way: {clean(obstacle)}")


def _unbilled(preview: ClosingPreview) -> list[tuple[str, str | None]]:
    parts = (("retries", preview.totals.retry_waste), ("unused time", preview.totals.unallocated))
    return [(name, money(part.amount_cents, preview.currency)) for name, part in parts]


def show_preview(preview: ClosingPreview) -> None:
    """Each customer's statement to stdout; remarks to stderr."""
    currency, totals = preview.currency, preview.totals
    rows = [row for statement in preview.statements for row in _rows(statement, currency)]
    if rows:
        show(table(_HEADS, rows, right=_HEADS[3:]))
    else:
        note("No customer would be billed.")
    show("")
    standing = "" if preview.standing else " (not the standing policy)"
    show(
        facts(
            (
                ("month", preview.month),
                ("policy", policy_in_words(preview) + standing),
                (COST, money(totals.billed.amount_cents, currency)),
                (CHARGED, _charged(preview)),
                *((f"cost of {name}", amount) for name, amount in _unbilled(preview)),
                ("cost in all", money(totals.amount_cents, currency)),
            )
        )
    )
    for series in preview.missing_prices:
        note(f"No price, so it would be charged nothing: {clean(series)}")
    _obstacles(preview)
    note(
        f"{clean(preview.month)} is closed; these are its statements."
        if preview.state == "closed"
        else "Nothing was closed."
    )


def _rows(statement: PreviewedStatement, currency: str | None) -> Iterator[tuple[object, ...]]:
    """The billed lines of a statement, and their sum."""
    for line in statement.lines:
        if line.amount_cents is not None:
            gpu = " ".join(filter(None, (line.gpu_type, line.region, line.purchase.replace("_", " "))))
            counts = line.requests if line.kind == "usage" else ""
            hours = shown(gpu_hours_text(line.nano_gpu_hours), 3)
            yield statement.tenant, _what(line), gpu, counts, hours, money(line.amount_cents, currency)
    about = "statement"
    if statement.charges is not None:
        yield statement.tenant, "cost", "", "", "", money(statement.amount_cents, currency)
        for charge in statement.charges.lines:
            yield statement.tenant, _charge(charge), "", "", "", money(charge.amount_cents, currency)
        about = "statement, by rate card"
    for added in statement.manual:
        what = f"{added.kind}: {clean(added.reason)}"
        yield statement.tenant, what, "", "", "", money(added.amount_cents, currency)
    for part in statement.credits.draws if statement.credits else ():
        what = f"prepaid credit: {clean(part.reason)}"
        yield statement.tenant, what, "", "", "", money(-part.cents, currency)
    yield statement.tenant, about, "", "", "", money(statement.due_cents, currency)


_TOKENS = {"input": "input", "cached": "cached input", "output": "output", "reasoning": "reasoning"}


def _charge(charge: Charge) -> str:
    """A line of a rate card: quantity and unit price."""
    match charge:
        case TokenCharge():
            free = f" less {charge.free_tokens:,} free" if charge.free_tokens else ""
            price = micros_text(charge.per_million)
            what = f"{counted(charge.tokens, f'{_TOKENS[charge.kind]} token')}{free} at {price} per million"
            return what + _tiers(charge) + _line(charge.line)
        case RequestCharge():
            free = f" less {charge.free_requests:,} free" if charge.free_requests else ""
            what = f"{counted(charge.requests, 'request')}{free} at {micros_text(charge.per_request)}"
            return what + _tiers(charge) + _line(charge.line)
        case ResidencyCharge():
            hours = f"{Decimal(hours_text(charge.hours)):,} adapter-hours at {micros_text(charge.per_hour)}"
            return hours + _line(charge.line)
        case DedicatedCharge():
            hours = f"{Decimal(hours_text(charge.hours)):,} dedicated GPU-hours"
            return f"{hours} at {micros_text(charge.per_gpu_hour)}{_line(charge.line)}"
        case DiscountCharge():
            end = f" until {charge.until}" if charge.until else ""
            return f"discount of {charge.percent} %{end}"
        case BatchDiscount():
            return f"discount on batches, at {charge.batch_percent} %"
        case MinimumCharge():
            return f"difference to the minimum of {Decimal(micros_text(charge.monthly_minimum)):,}"
        case CorrectionCharge():
            return f"correction of {charge.month}"
        case CostCharge():
            return "usage at cost"


def _tiers(charge: TokenCharge | RequestCharge) -> str:
    steps = (f"; above {tier.above:,} at {micros_text(tier.unit_price)}" for tier in charge.tiers)
    return "".join(steps)


def _line(name: str) -> str:
    return f", {clean(name)}" if name else ""


def _what(line: StatementLine) -> str:
    what = (line.adapter or "base model") if line.kind == "usage" else "share of unused time"
    if not line.correction:
        return what
    return f"{what}, correction of {line.corrects}" if line.corrects else f"{what}, correction"
