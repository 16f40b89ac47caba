"""The cost report as an analyst reads it: who used what, what else the time went into, and the whole."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from adapters.wording import counted
from gateway.commands.output import clean, console, note, note_incomplete, show, table
from gateway.costs.reports.commands.rounding import cents_of, places_for, rounded, summed
from gateway.costs.reports.schemas.costs import (
    Corrections,
    CostPart,
    CostReport,
    CostRow,
    Figures,
    UnitPrices,
    Utilization,
)
from gateway.costs.statement.commands.invoice_table import show_invoice
from gateway.schemas.finance import PriceSeries
from gateway.units import places_of, shown, shown_money

_COUNTS = {
    "requests": "requests",
    "prompt_tokens": "input",
    "cached_tokens": "of which cached",
    "completion_tokens": "output",
}
_COUNTED = {"delivered", "delivered so far", "retry waste", "corrections"}
_STATES = {"open": "still open", "closing": "being closed", "closed": "closed"}
_BASES = {"posted": "as posted", "as known now": "as known now"}
_KINDS = {"input": "input", "cached": "cached input", "output": "output"}


def show_report(report: CostReport, *, unit_prices: bool = False) -> None:
    """Tables to stdout; remarks about them to stderr. `unit_prices`: also the cost of a million tokens."""
    note(_heading(report))
    parts = {"delivered" if report.complete else "delivered so far": report.totals} | {
        label: part.totals for label, part in _parts(report) if part.rows or part.totals.requests
    }
    if not report.rows and len(parts) == 1:
        note("No usage in this period.")
    else:
        _main(report, parts)
    if report.invoice is not None and report.provisioned is not None:
        show_invoice(report.invoice, report.provisioned, report.currency)
    if report.utilization:
        _utilization(report.utilization, report.currency)
    if unit_prices:
        _unit_prices(report.unit_prices, report.currency)
    for remark in _remarks(report):
        note(remark)
    note_incomplete(report)


def _parts(report: CostReport) -> Iterator[tuple[str, CostPart | Corrections]]:
    """What is beside the rows."""
    yield "retry waste", report.retry_waste
    if report.headroom is not None:
        yield "spare capacity while busy", report.headroom
    if report.startup is not None:
        yield "start-up", report.startup
    if report.idle is not None:
        yield "idle", report.idle
    yield "corrections", report.corrections


def _heading(report: CostReport) -> str:
    zone = clean(report.local.timezone) if report.local else ""
    remarks = ", ".join(filter(None, (zone, _BASES[report.basis], _STATES.get(report.state or ""))))
    period = report.local or report
    return f"{clean(period.start)} to {clean(period.to)} ({remarks})"


def _main(report: CostReport, parts: dict[str, Figures]) -> None:
    groups, rows, overall = report.by, report.rows, report.provisioned
    currency = f" {report.currency}" if report.currency else ""
    hours, costs = (
        _column(rows, parts, overall, _hours, places=3),
        _costs(report, parts),
    )
    names = [_names(row, groups, report.key_labels) for row in rows]
    counts = [_counts(row) for row in rows]
    blank = [""] * (len(groups) - 1)
    for label, figures in parts.items():
        names.append([label, *blank])
        counts.append(_counts(figures) if label in _COUNTED else [""] * len(_COUNTS))
    if overall is not None:
        names.append(["total" if report.complete else "total so far", *blank])
        counts.append([""] * len(_COUNTS))
    heads, columns = [*_COUNTS.values(), f"cost{currency}"], [costs]
    if any(figures.gpu_hours is not None for figures in parts.values()):
        heads.insert(len(_COUNTS), "GPU-hours")
        columns.insert(0, hours)
    if report.totals.allocates:
        heads.append(f"share of unused time{currency}")
        columns.append(_allocated(report, parts, len(names)))
    cells = [[*n, *c, *more] for n, c, *more in zip(names, counts, *columns, strict=True)]
    styles = [*[""] * len(rows), "bold", *["dim"] * (len(parts) - 1), "bold"]
    styled = [
        [Text(clean(cell) if cell else "", style) for cell in row]
        for row, style in zip(cells, styles, strict=False)
    ]
    titles = [group.replace("_", " ") for group in groups]
    show(_fitting([*titles, *heads], styled, heads, {len(rows) - 1, len(rows) + len(parts) - 1}))


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], heads: Sequence[str], ends: set[int]
) -> Table:
    """Shows as many token columns as fit the window. `ends`: rows after which a section ends."""
    screen = console()
    for hidden in ((), ("of which cached",), ("of which cached", "input", "output")):
        kept = [index for index, name in enumerate(columns) if name not in hidden]
        fitted = table([columns[i] for i in kept], ([row[i] for i in kept] for row in rows), right=heads)
        fitted.padding = (0, 1, 0, 0)
        for index, row in enumerate(fitted.rows):
            row.end_section = index in ends
        if Measurement.get(screen, screen.options.update(max_width=10_000), fitted).maximum <= screen.width:
            break
    return fitted


def _names(row: CostRow, groups: Sequence[str], keys: Mapping[str, str]) -> list[str]:
    """An empty adapter is the base model; a row without usage only bears allocated time. `keys`: what they
    are called."""
    used = row.requests or row.gpu_seconds
    names = [row.dimension(g) or ("(base model)" if g == "adapter" and used else "-") for g in groups]
    return [f"{keys[n]} ({n})" if g == "key" and n in keys else n for g, n in zip(groups, names, strict=True)]


def _counts(figures: Figures) -> list[str]:
    counts = (figures.requests, figures.prompt_tokens, figures.cached_tokens, figures.completion_tokens)
    return [f"{count:,}" for count in counts]


def _hours(figures: Figures) -> Decimal | None:
    return None if figures.gpu_hours is None else Decimal(figures.gpu_hours)


def _cost(figures: Figures) -> Decimal | None:
    """Without a price for some of it, the cost of the rest; a remark says what is missing."""
    if figures.cost is not None:
        return Decimal(figures.cost)
    return Decimal(figures.priced_cost or 0) or None


def _allocated(report: CostReport, parts: dict[str, Figures], length: int) -> list[str]:
    """Unused time allocated to each row, and by corrections."""
    figures = [*report.rows, report.totals]
    known = [None if row.allocated_cost is None else Decimal(row.allocated_cost) for row in figures]
    places = places_for(known, report.currency)
    if places == places_of(report.currency):
        known = _rather([cents_of(row.allocated_amount_cents) for row in figures], known)
    amounts = [*rounded(known[:-1], known[-1], places), known[-1]]
    blank = [""] * (length - len(amounts))
    if "corrections" in parts and (late := parts["corrections"].allocated_cost):
        blank[list(parts).index("corrections") - 1] = shown(late, places)
    return [*(shown(amount, places) for amount in amounts), *blank]


def _costs(report: CostReport, parts: dict[str, Figures]) -> list[str]:
    amounts = [
        _cost(part) for part in (*parts.values(), *([report.provisioned] if report.provisioned else []))
    ]
    if report.provisioned is None:
        amounts.append(summed(amounts))
    places = places_for(amounts, report.currency)
    as_stated = places == places_of(report.currency)  # more places contradict no statement
    cents = _stated if as_stated else None
    return _column(report.rows, parts, report.provisioned, _cost, places=places, cents=cents)


def _stated(figures: Figures) -> Decimal | None:
    return cents_of(figures.amount_cents)


def _column(
    rows: Sequence[CostRow],
    parts: dict[str, Figures],
    overall: Figures | None,
    amount: Callable[[Figures], Decimal | None],
    *,
    places: int,
    cents: Callable[[Figures], Decimal | None] | None = None,
) -> list[str]:
    """Cells of the rows, the parts (the first is the rows' total) and the whole. The rounded amounts add up
    to the sums shown, because a reader will check. `cents`: amounts that are rounded already, as on the
    statements."""
    inside, outside = [amount(row) for row in rows], [amount(part) for part in parts.values()]
    total = summed(outside) if overall is None else amount(overall)
    if cents is not None:
        inside = _rather([cents(row) for row in rows], inside)
        outside = _rather([cents(part) for part in parts.values()], outside)
        total = summed(outside) if overall is None else total
    outside = rounded(outside, total, places)
    inside = rounded(inside, outside[0], places)
    return [shown(a, places) for a in (*inside, *outside, *([] if overall is None else [total]))]


def _rather(cents: list[Decimal | None], amounts: list[Decimal | None]) -> list[Decimal | None]:
    return amounts if None in cents else cents


def _utilization(rows: Sequence[Utilization], currency: str | None) -> None:
    heads = ("GPU-hours provisioned", "busy", "utilization", "cost of unused time")
    costs = [None if row.idleness_cost is None else Decimal(row.idleness_cost) for row in rows]
    places = places_for(costs, currency)
    cells = [
        (
            row.gpu_type, shown(row.provisioned_gpu_hours, 3), shown(row.busy_gpu_hours, 3),
            "-" if row.utilization is None else f"{row.utilization:.1%}", shown(cost, places),
        )
        for row, cost in zip(rows, costs, strict=True)
    ]  # fmt: skip  # as the columns
    show(Text())
    show(table(("gpu type", *heads), cells, right=heads))


def _unit_prices(rows: Sequence[UnitPrices], currency: str | None) -> None:
    """A line for each GPU and kind of price, except prices that are unknown."""
    lines = []
    for row in rows:
        gpu = " ".join(filter(None, (row.gpu_type, row.region, row.purchase.replace("_", " "))))
        for kind, prices in (
            ("at saturation", row.saturated),
            ("excluding unused time", row.busy),
            ("including unused time", row.loaded),
        ):
            texts = (prices.input, prices.cached, prices.output)
            if any(texts):
                lines.append((gpu, kind, [None if text is None else Decimal(text) for text in texts]))
    places = places_for([price for *_, prices in lines for price in prices], currency)
    cells = [[gpu, kind, *(shown(price, places) for price in prices)] for gpu, kind, prices in lines]
    if cells:
        heads = tuple(_KINDS.values())
        show(Text())
        show(table((f"{currency or 'cost'} per million tokens", "", *heads), cells, right=heads))


def _remarks(report: CostReport) -> Iterator[str]:
    yield from _unused(report)
    if report.unallocated is not None and Decimal(report.unallocated.cost or 0):
        yield f"Of it, {shown(report.unallocated.cost, 6)} {report.currency} is not allocated to any tenant."
    for kind in report.without_engine:
        saved = f"{shown(kind.gpu_hours, 3)} GPU-hours"
        if kind.cost is not None:
            saved += f" and {shown_money(kind.cost, report.currency)} {report.currency} at list price"
        gpu = " ".join(filter(None, (kind.gpu_type, kind.region, kind.purchase.replace("_", " "))))
        yield (
            f"For part of the time, no engine ran {clean(kind.base_model)} on {clean(gpu)}, "
            f"which saved {saved}, compared with one that never stops."
        )
    if report.rejected:
        requests = counted(report.rejected, "request was", "requests were")
        yield f"{requests} rejected before reaching an engine and cost nothing."
    if report.weights == "uncalibrated" and report.rows:
        yield "GPU time is divided by uncalibrated weights (input to output 1:2); run florin calibrate."
    elif report.weights == "partly calibrated":
        yield "Some GPU time is divided by uncalibrated weights (input to output 1:2)."
    for later in report.corrected_later:
        change = "without a price" if later.cost is None else f"{shown(later.cost, 6)} {report.currency}"
        requests = f"{later.requests:+,} requests"
        yield f"Corrected in {clean(later.month)}, beside these figures: {requests}, {change}."
    if (rate := report.exchange_rate) is not None:
        equation = f"1 {clean(rate.currency)} = {clean(rate.rate)} {clean(report.currency)}"
        changed = ", at the end of the period: it changed within it" if rate.changed_within else ""
        yield f"Converted at {equation} ({clean(rate.source)}, {clean(rate.valid_from)}{changed})."
    for series in report.missing_prices:
        yield _missing(series)
    for name, since in report.names_reused.items():
        yield (
            f"{clean(name)} was an earlier tenant's name until {clean(since)}; its rows cover both. --to and "
            "--from tell them apart."
        )
    for hour in report.set_aside:
        reason = f": {hour.reason}" if hour.reason else ", because its usage is implausible"
        engine = f"{hour.engine or f'An engine ({hour.gpu_type})'} at {hour.hour}"
        yield f"Not in these figures: {clean(engine)} is set aside{clean(reason)}."


def _unused(report: CostReport) -> Iterator[str]:
    """What the total is, and how much of it no request used."""
    cost = None if report.provisioned is None else _cost(report.provisioned)
    if not cost:
        return
    yield "The total is the provisioned GPU cost at list price."
    for what, parts in (
        ("Cost of unused time (idle and start-up)", (report.idle, report.startup)),
        ("Cost of spare capacity while busy", (report.headroom,)),
    ):
        if part := summed([_cost(part.totals) for part in parts if part is not None]):
            money = f"{shown(part, places_for([cost], report.currency))} {report.currency}"
            yield f"{what}: {money}, {part / cost:.1%} of the total."


def _missing(series: PriceSeries) -> str:
    options = f"--gpu-type {shlex.quote(clean(series.gpu_type))}"
    if series.region:
        options += f" --region {shlex.quote(clean(series.region))}"
    if series.purchase != "on_demand":
        options += f" --purchase {series.purchase}"
    hours = Decimal(series.gpu_hours or 0)
    without = f", and no amount includes its {shown(hours, 3)} GPU-hours" if hours else ""
    return f"No price for {clean(series.gpu_type)}{without}: add one with florin price add {options} --rate …"
