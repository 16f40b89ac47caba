"""What closing a month would bill: shown before the question, and by `florin cost close --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from gateway.commands.client import Json
from gateway.commands.cost.shares import policy_in_words
from gateway.commands.output import clean, facts, note, show, table
from gateway.units import gpu_hours_text, shown, shown_cents

_MOST = 20
"""Customers to name before the question."""
_HEADS = ("customer", "what", "GPU", "requests", "GPU-hours", "amount")


def money(cents: int | None, currency: str | None) -> str | None:
    return None if cents is None else f"{shown_cents(cents)} {currency or ''}".strip()


def question(body: Json) -> str:
    """What a person agrees to."""
    billed = money(sum(map(charged, body["statements"])), body["currency"])
    count = len(body["statements"])
    customers = "1 customer" if count == 1 else f"{count:,} customers"
    policy = clean(policy_in_words(body))
    bill = ", with the above of its bill not accepted" if body.get("unaccepted") else ""
    return (
        f"Close {clean(body['month'])} with policy {policy}{bill}: {billed} for {customers}? This cannot be "
        "undone."
    )


def charged(statement: Json) -> int:
    """What the customer pays, in cents: by its rate card, or the cost."""
    return int((statement.get("charges") or statement)["amount_cents"])


def _by_card(statement: Json, currency: str | None) -> str:
    charges = statement.get("charges")
    if not charges:
        return ""
    return f" by rate card {clean(charges['card'] or '')} (cost {money(statement['amount_cents'], currency)})"


def announce(body: Json, *, force: bool) -> None:
    """What the question is about: amounts, and what stays open."""
    totals, currency = body["totals"], body["currency"]
    how = "the standing policy" if body["standing"] else "not by the standing policy, but by"
    note(f"{clean(body['month'])}: unused GPU time is shared by {how}: {clean(policy_in_words(body))}.")
    for statement in body["statements"][:_MOST]:
        amount = money(charged(statement), currency)
        note(f"  {clean(statement['tenant'])}: {amount}{_by_card(statement, currency)}")
    if (more := len(body["statements"]) - _MOST) > 0:
        note(f"  and {more:,} more: florin cost close {clean(body['month'])} --dry-run shows all.")
    left = [(name, totals[key]["amount_cents"]) for key, name in _LEFT.items()]
    said = ", ".join(f"{name} {money(cents, currency)}" for name, cents in left)
    note(f"Billed to no customer: {said}.")
    note("Later months stay open: late records and new prices become corrections there.")
    for series in body["missing_prices"]:
        note(f"Stays open: {clean(series)} has no price and costs nothing until one is added.")
    if force:
        note("Closing early: records that workers have not shipped yet become corrections in the next month.")
    for sentence in body.get("unaccepted", ()):
        note(f"Not reconciled: {clean(sentence)}")
    for obstacle in body["obstacles"]:
        note(f"In the way: {clean(obstacle)}")


_LEFT = {"retry_waste": "retry waste", "unallocated": "unused time"}


def show_preview(body: Json) -> None:
    """Each customer's statement to stdout; remarks to stderr."""
    currency, totals = body["currency"], body["totals"]
    rows = [row for statement in body["statements"] for row in _rows(statement, currency)]
    if rows:
        show(table(_HEADS, rows, right=_HEADS[3:]))
    else:
        note("No customer would be billed.")
    show("")
    amounts = [(name, money(totals[key]["amount_cents"], currency)) for key, name in _LEFT.items()]
    show(
        facts(
            (
                ("month", body["month"]),
                (
                    "policy",
                    policy_in_words(body) + ("" if body["standing"] else " (not the standing policy)"),
                ),
                ("billed", money(totals["billed"]["amount_cents"], currency)),
                *amounts,
                ("total", money(totals["amount_cents"], currency)),
            )
        )
    )
    for series in body["missing_prices"]:
        note(f"No price, so it would be charged nothing: {clean(series)}")
    for sentence in body.get("unaccepted", ()):
        note(f"Not reconciled: {clean(sentence)}")
    for obstacle in body["obstacles"]:
        note(f"In the way: {clean(obstacle)}")
    note(
        f"{clean(body['month'])} is closed; these are its statements."
        if body["state"] == "closed"
        else "Nothing was closed."
    )


def _rows(statement: Json, currency: str | None) -> Iterator[tuple[object, ...]]:
    """The billed lines of a statement, and their sum."""
    for line in statement["lines"]:
        if line["amount_cents"] is not None:
            gpu = " ".join(
                filter(None, (line["gpu_type"], line["region"], line["purchase"].replace("_", " ")))
            )
            counts = line["requests"] if line["kind"] == "usage" else ""
            yield (
                *(statement["tenant"], _what(line), gpu, counts),
                *(shown(gpu_hours_text(line["nano_gpu_hours"]), 3), money(line["amount_cents"], currency)),
            )
    about = "statement"
    if statement.get("charges"):
        yield statement["tenant"], "cost", "", "", "", money(statement["amount_cents"], currency)
        for line in statement["charges"]["lines"]:
            amount = money(line["amount_cents"], currency)
            yield statement["tenant"], _charge(line), "", "", "", amount
        about = "statement, by rate card"
    yield statement["tenant"], about, "", "", "", money(charged(statement), currency)


_TOKENS = {"input": "input", "cached": "cached input", "output": "output"}


def _charge(line: Json) -> str:
    """A line of a rate card: quantity and unit price."""
    if line["kind"] in _TOKENS:
        free = f" less {line['free_tokens']:,} free" if line["free_tokens"] else ""
        return f"{line['tokens']:,} {_TOKENS[line['kind']]} tokens{free} at {line['per_million']} per million"
    if line["kind"] == "residency":
        return f"{Decimal(line['hours']):,} adapter-hours at {line['per_hour']}"
    if line["kind"] == "batch_discount":
        return f"discount on batches, at {line['batch_percent']} %"
    if line["kind"] == "minimum":
        return f"difference to the minimum of {Decimal(line['monthly_minimum']):,}"
    return f"correction of {line['month']}" if line["kind"] == "correction" else "usage at cost"


def _what(line: Json) -> str:
    what = (line["adapter"] or "base model") if line["kind"] == "usage" else "share of unused time"
    if not line["correction"]:
        return str(what)
    return f"{what}, correction of {line['corrects']}" if line.get("corrects") else f"{what}, correction"
