"""Renders the statement as a self-contained HTML page that prints on one sheet of A4."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, TypeVar, Unpack

from adapters.wording import counted
from gateway.costs.closing.documents import Charge, ManualCharge, RequestCharge, ResidencyCharge, TokenCharge
from gateway.costs.export.writers import write_csv
from gateway.costs.periods import iso
from gateway.costs.statement import plots, table
from gateway.costs.statement.division import DIMENSION_NAMES
from gateway.costs.statement.document import COMPLETE, document
from gateway.costs.statement.items import Item, at_list_prices
from gateway.costs.statement.statement_figures import Statement, read_statement
from gateway.metering.ledger.ledger import Ledger
from gateway.units import FEMTO, Amount, Cents, half_up, shown, shown_cents, total

if TYPE_CHECKING:
    from jinja2 import Template

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip  # one name a line says no more
_ROWS, _CORRECTIONS, _PRICES, _PARTS, _MANUAL = 11, 4, 4, 45, 5
"""Most lines of a table; parts have a page of their own. If there are more, the last row sums the rest; the
export has all."""
_LETTERS = 26
"""Characters that fit on one line of the first column."""


class Question(TypedDict, total=False):
    """What a statement is about: see `read_statement`."""

    known: Required[bool]
    currency: str | None
    now: Required[int]
    for_tenant: bool
    by: str | None


Labels = Mapping[str, str]
"""Ids of keys → what their owners call them."""
_NO_LABELS: Labels = MappingProxyType({})
Form = TypeVar("Form")


def render(
    statement: Statement,
    *,
    issuer: str,
    now: int,
    labels: Labels = _NO_LABELS,
    completeness: Mapping[str, Any] = COMPLETE,
) -> str:
    series = plots.top(statement.days)
    colours = {entry.name: entry.colour for entry in series}
    lacks = [] if statement.period_hash else reasons(completeness)
    first, last = iso(statement.period.start)[:10], iso(statement.period.end - 1)[:10]
    return template("statement.html.j2").render(
        s=statement,
        issuer=issuer,
        lacks=lacks,
        so_far=" so far" if lacks else "",
        title=f"{_MONTHS[int(statement.month[5:]) - 1]} {statement.month[:4]}",
        first=first,
        last=last,
        dated=iso(statement.period_hash.closed_at if statement.period_hash else now)[:10],
        totals=summed("", statement.usage),
        rows=fitting(_short(statement.usage, statement.tenant), _ROWS),
        allocated=summed("", statement.allocated) if statement.allocated else None,
        corrections=fitting(_short(statement.corrections, statement.tenant), _CORRECTIONS),
        prices=statement.unit_prices[:_PRICES],
        series=[replace(entry, name=short(entry.name, statement.tenant)) for entry in series],
        charges=_charges(statement),
        manual=_manual(statement.manual) + _drawn(statement),
        resident=any(isinstance(line, ResidencyCharge) for line in _lines(statement)),
        free=_free_cents(statement),
        off=_off(statement),
        tax=statement.tax_cents,
        days=plots.days(series, "Tokens per day, by adapter"),
        division=_division(statement, labels),
        bars=plots.bars(_bars(statement, colours), "Amount by adapter"),
    )


def reasons(completeness: Mapping[str, Any]) -> list[str]:
    """Why figures are incomplete, in sentences."""
    return [
        completeness["missing"] if reason["code"] == "ledgers_differ" else reason["message"]
        for reason in completeness["reasons"]
    ]


def _table(
    statement: Statement,
    *,
    issuer: str,
    now: int,
    labels: Labels = _NO_LABELS,
    completeness: Mapping[str, Any] = COMPLETE,
) -> bytes:
    """As CSV: see `table`."""
    content = document(statement, issuer=issuer, now=now, labels=labels, completeness=completeness)
    return as_csv(content).encode()


def as_csv(content: Mapping[str, Any]) -> str:
    """A statement's document, or what has its lines."""
    file = io.BytesIO()
    write_csv(file, table.COLUMNS, table.constants(content), table.rows(content))
    return file.getvalue().decode()


@dataclass(frozen=True, slots=True)
class StatementIn(Generic[Form]):
    """The statement of a tenant and a month in one form."""

    render: Callable[..., Form]

    def __call__(
        self,
        ledger: Ledger,
        tenant: str,
        month: str,
        *,
        issuer: str,
        labels: Labels = _NO_LABELS,
        completeness: Mapping[str, Any] = COMPLETE,
        **question: Unpack[Question],
    ) -> Form | None:
        """If the tenant has nothing in that month: an empty statement if it is `known`, else None. `now`: the
        date of a preliminary one. `completeness`: what a preliminary one says of what it lacks. For the
        others, see `read_statement`.

        Raises PeriodError, MissingPriceError, ExchangeRateError, LedgerUnavailableError."""
        with ledger.read() as connection:
            statement = read_statement(connection, tenant, month, **question)
        if statement is None:
            return None
        return self.render(
            statement, issuer=issuer, now=question["now"], labels=labels, completeness=completeness
        )


statement_page = StatementIn(render)
statement_json = StatementIn(document)
statement_csv = StatementIn(_table)


def _division(statement: Statement, labels: Labels) -> dict[str, Any] | None:
    division = statement.division
    if division is None:
        return None
    kind = DIMENSION_NAMES[division.dimension]
    named = [
        replace(part, name=f"{labels.get(part.name, '')} {part.name}".strip() or f"without {kind}")
        for part in division.parts
    ]
    priced = statement.charges is not None and statement.charges.card
    other = (
        "Residency, allowance, discounts, minimum and corrections"
        if priced
        else "Corrections of earlier months"
    )
    added = ", and fees, charges and credits" if statement.manual or statement.credits else ""
    return {
        "kind": kind,
        "parts": fitting(named, _PARTS),
        "unused": division.unused_cents,
        "other": division.other_cents,
        "said": other + added,
    }


def fitting(items: Sequence[Item], most: int) -> list[Item]:
    """The most expensive items in `most` lines, the last of which sums the rest."""
    ordered = sorted(items, key=lambda item: (-abs(item.cents), item.name, item.gpu))
    lines = list(accumulate(1 + (len(item.name) - 1) // _LETTERS for item in ordered))
    if not lines or lines[-1] <= most:
        return list(items)
    kept = max(1, bisect_right(lines, most - 1))
    rest = ordered[kept:]
    last = [summed(f"{len(rest)} more", rest)] if rest else []
    return [*sorted(ordered[:kept], key=lambda i: (i.name, i.gpu)), *last]


def summed(name: str, items: Iterable[Item]) -> Item:
    total = Item(name, "", 0, 0, 0, 0, Cents(0))
    for item in items:
        total = replace(total, **{field: getattr(total, field) + getattr(item, field) for field in _SUMS})
    return total


_SUMS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cents")


def _bars(statement: Statement, colours: dict[str, str]) -> list[tuple[str, str, int, str]]:
    amounts: dict[str, int] = {}
    for item in statement.usage:
        name = item.name.partition("@")[0]
        name = name if name in colours else plots.REST
        amounts[name] = amounts.get(name, 0) + item.cents
    ordered = sorted(amounts.items(), key=lambda pair: (pair[0] == plots.REST, -pair[1], pair[0]))
    return [
        (
            short(name, statement.tenant),
            colours.get(name, plots.COLOURS[-1]),
            cents,
            money(cents, statement.currency),
        )
        for name, cents in ordered
    ]


def short(name: str, tenant: str) -> str:
    """The name as the tenant calls it: without the tenant for its own adapters."""
    return name.removeprefix(f"{tenant}/")


def _short(items: Iterable[Item], tenant: str) -> list[Item]:
    return [replace(item, name=short(item.name, tenant)) for item in items]


def _charges(statement: Statement) -> list[dict[str, Any]]:
    """The lines of a rate card, as the page words them; [] without one."""
    lines = (statement.charges_document or {}).get("lines", ())
    return [{**line, "name": _charge_name(line), **_priced(line)} for line in lines]


def _priced(line: Mapping[str, Any]) -> dict[str, str]:
    """Quantity and unit price, of what has them."""
    if line["kind"] == "residency":
        hours = f"{_grouped(line['hours'])} h"
        return {"quantity": hours, "free": "", "unit_price": f"{line['per_hour']} per hour"}
    if line["kind"] == "dedicated":
        hours = f"{_grouped(line['hours'])} GPU-h"
        return {"quantity": hours, "free": "", "unit_price": f"{line['per_gpu_hour']} per GPU-hour"}
    if "tokens" in line:
        quantity, free, price = line["tokens"], line["free_tokens"], f"{line['per_million']} per million"
    elif "requests" in line:
        quantity, free, price = line["requests"], line["free_requests"], f"{line['per_request']} per request"
    else:
        return {}
    tiers = "".join(f"; above {count(tier['above'])}: {tier['unit_price']}" for tier in line.get("tiers", ()))
    return {"quantity": count(quantity), "free": count(free), "unit_price": price + tiers}


def _grouped(number: str) -> str:
    integer, _, part = number.partition(".")
    return f"{int(integer):,}.{part}"


_KINDS = {
    "input": "Input tokens, not cached",
    "cached": "Cached input tokens",
    "output": "Output tokens",
    "reasoning": "Reasoning tokens",
    "requests": "Requests",
}


def _charge_name(line: Mapping[str, Any]) -> str:
    if line["kind"] == "minimum":
        return f"Difference to the monthly minimum of {_grouped(line['monthly_minimum'])}"
    if line["kind"] == "residency":
        return f"Residency of {counted(len(line['adapters']), 'adapter')}{_of_line(line)}"
    if line["kind"] == "dedicated":
        return f"Dedicated GPUs: {', '.join(gpus['gpu_type'] for gpus in line['gpus'])}{_of_line(line)}"
    if line["kind"] == "batch_discount":
        return f"Discount on batches, whose tokens cost {line['batch_percent']} %{_of_line(line)}"
    if line["kind"] == "discount":
        end = f" until {line['until']}" if line["until"] else ""
        return f"Discount of {line['percent']} %{end}"
    if line["kind"] == "correction":
        return f"Correction of {line['month']}: {line['reason']}"
    return _KINDS.get(line["kind"], "Usage at cost") + _of_line(line)


def _of_line(line: Mapping[str, Any]) -> str:
    return f", {line['line']}" if "line" in line else ""


def _manual(lines: Sequence[ManualCharge]) -> list[tuple[str, Cents]]:
    """What they are and their amounts; the last sums those that are too many for the page."""
    shown, rest = (lines, ()) if len(lines) <= _MANUAL else (lines[: _MANUAL - 1], lines[_MANUAL - 1 :])
    rows = [(_manual_name(line), line.amount_cents) for line in shown]
    return [*rows, *([(f"{len(rest)} more", total(line.amount_cents for line in rest))] if rest else [])]


def _drawn(statement: Statement) -> list[tuple[str, Cents]]:
    prepaid = statement.credits
    return [("Prepaid credits", Cents(-prepaid.drawn_cents))] if prepaid and prepaid.drawn_cents else []


def _manual_name(line: ManualCharge) -> str:
    about = f" for {line.adapter}" if line.adapter else ""
    days = f", {line.days} of {line.days_in_month} days" if line.days else ""
    return f"{line.kind.capitalize()}{about}: {line.reason}{days}"


def _free_cents(statement: Statement) -> int:
    """What allowance, tiers and lines for batches take off the list prices of the adapters."""
    lines = [line for line in _lines(statement) if isinstance(line, TokenCharge | RequestCharge)]
    return total(line.amount_cents for line in lines) - summed("", statement.usage).cents if lines else 0


def _off(statement: Statement) -> str:
    """What it is called."""
    lines = [line for line in _lines(statement) if isinstance(line, TokenCharge | RequestCharge)]
    if at_list_prices(lines):
        return "Prices of batches"
    tiers = any(line.tiers for line in lines)
    free = not at_list_prices(line.model_copy(update={"tiers": ()}) for line in lines)
    return "Free allowance and tiers" if tiers and free else "Tiers" if tiers else "Free allowance"


def _lines(statement: Statement) -> tuple[Charge, ...]:
    return () if statement.charges is None else statement.charges.lines


def money(cents: int, currency: str) -> str:
    return shown_cents(cents, currency).replace("-", MINUS)


def count(number: int) -> str:
    return f"{number:,}".replace("-", MINUS)


def tokens(number: int) -> str:
    """Rounded to three digits."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            value = number / unit
            return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} {name}"
    return str(number)


def per_million(price: Amount | None) -> str:
    """Rounded to four places."""
    return DASH if price is None else shown(Decimal(half_up(price, FEMTO // 10**4)).scaleb(-4), 4)


@cache
def template(name: str) -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # few workers ever need it

    environment = Environment(
        loader=PackageLoader("gateway.costs.statement", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({f.__name__: f for f in (money, count, tokens, per_million)})
    return environment.get_template(name)
