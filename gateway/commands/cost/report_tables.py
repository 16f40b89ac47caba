"""The cost report as an analyst reads it: who used what, what else the time went into, and the whole."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gateway.commands.client import Json
from gateway.commands.cost.invoice_table import show_invoice
from gateway.commands.cost.rounding import cents_of, places_of, rounded, summed
from gateway.commands.output import clean, console, note, note_incomplete, show, table
from gateway.units import shown

_COUNTS = {
    "requests": "requests",
    "prompt_tokens": "input",
    "cached_tokens": "of which cached",
    "completion_tokens": "output",
}
_PARTS = {
    "retry_waste": "retry waste",
    "headroom": "spare capacity while busy",
    "startup": "start-up",
    "idle": "idle",
    "corrections": "corrections",
}
_COUNTED = {"delivered", "retry waste", "corrections"}
_SAID = {
    "posted": "as posted",
    "as known now": "as known now",
    "open": "still open",
    "closing": "being closed",
    "closed": "closed",
}
_UNUSED = ("idle", "startup")
_KINDS = {"input": "input", "cached": "cached input", "output": "output"}
_WAYS = {
    "saturated": "at saturation",
    "busy": "excluding unused time",
    "loaded": "including unused time",
}


def show_report(body: Json, *, unit_prices: bool = False) -> None:
    """Tables to stdout; remarks about them to stderr. `unit_prices`: also the cost of a million tokens."""
    note(_heading(body))
    parts = {"delivered": body["totals"]}
    parts |= {label: body[n]["totals"] for n, label in _PARTS.items() if _present(body.get(n))}
    if not body["rows"] and len(parts) == 1:
        note("No usage in this period.")
    else:
        _main(body, parts)
    if body.get("invoice"):
        show_invoice(body)
    if body.get("utilisation"):
        _utilisation(body["utilisation"])
    if unit_prices and body.get("unit_prices"):
        _unit_prices(body["unit_prices"], body["currency"])
    for remark in _remarks(body):
        note(remark)
    note_incomplete(body)


def _heading(body: Json) -> str:
    basis = {"posted": "as posted", "as known now": "as known now"}.get(body.get("basis", ""), "")
    state = {"open": "still open", "closing": "being closed", "closed": "closed"}.get(
        body.get("state") or "", ""
    )
    local = body.get("local") or {}
    said = ", ".join(filter(None, (clean(local["timezone"]) if local else "", basis, state)))
    start, end = ((local or body)[name] for name in ("from", "to"))
    return f"{clean(start)} to {clean(end)}{f' ({said})' if said else ''}"


def _present(part: Json | None) -> bool:
    return bool(part and (part["rows"] or part["totals"].get("requests")))


def _main(body: Json, parts: dict[str, Json]) -> None:
    groups, rows, whole = body["by"], body["rows"], body.get("whole")
    currency = f" {body['currency']}" if body["currency"] else ""
    hours, costs = (
        _column(rows, parts, whole, _hours, least=3),
        _column(rows, parts, whole, _cost, cents=cents_of),
    )
    names = [_names(row, groups, body.get("key_labels", {})) for row in rows]
    counts = [_counts(row) for row in rows]
    blank = [""] * (len(groups) - 1)
    for label, figures in parts.items():
        names.append([label, *blank])
        counts.append(_counts(figures) if label in _COUNTED else [""] * len(_COUNTS))
    if whole is not None:
        names.append(["total", *blank])
        counts.append([""] * len(_COUNTS))
    heads, columns = [*_COUNTS.values(), f"cost{currency}"], [costs]
    if any("gpu_hours" in figures for figures in parts.values()):
        heads.insert(len(_COUNTS), "GPU-hours")
        columns.insert(0, hours)
    if "allocated_cost" in body["totals"]:
        heads.append(f"share of unused time{currency}")
        columns.append(_allocated(body, parts, len(names)))
    cells = [[*n, *c, *more] for n, c, *more in zip(names, counts, *columns, strict=True)]
    styles = [*[""] * len(rows), "bold", *["dim"] * (len(parts) - 1), "bold"]
    styled = [
        [Text(clean(cell) if cell else "", style) for cell in row]
        for row, style in zip(cells, styles, strict=False)
    ]
    names_of = [g.replace("_", " ") for g in groups]
    show(_fitting([*names_of, *heads], styled, heads, {len(rows) - 1, len(rows) + len(parts) - 1}))


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], heads: Sequence[str], ends: set[int]
) -> Table:
    """Shows as many token columns as fit the window. `ends`: rows after which a section ends."""
    screen = console()
    for hidden in ((), ("of which cached",), ("of which cached", "input", "output")):
        kept = [index for index, name in enumerate(columns) if name not in hidden]
        made = table([columns[i] for i in kept], ([row[i] for i in kept] for row in rows), right=heads)
        made.padding = (0, 1, 0, 0)
        for index, row in enumerate(made.rows):
            row.end_section = index in ends
        if Measurement.get(screen, screen.options.update(max_width=10_000), made).maximum <= screen.width:
            break
    return made


def _names(row: Json, groups: Sequence[str], keys: dict[str, str]) -> list[str]:
    """An empty adapter is the base model; a row without usage only bears allocated time. `keys`: what they
    are called."""
    used = row["requests"] or row.get("gpu_seconds")
    names = [row[g] or ("(base model)" if g == "adapter" and used else "-") for g in groups]
    return [f"{keys[n]} ({n})" if g == "key" and n in keys else n for g, n in zip(groups, names, strict=True)]


def _counts(row: Json) -> list[str]:
    return [f"{row[name]:,}" for name in _COUNTS]


def _hours(figures: Json) -> Decimal | None:
    return Decimal(figures["gpu_hours"]) if "gpu_hours" in figures else None


def _cost(figures: Json) -> Decimal | None:
    """Without a price for some of it, the cost of the rest; a remark says what is missing."""
    cost = figures["cost"] if figures["cost"] is not None else figures.get("priced_cost")
    return None if cost is None or (figures["cost"] is None and not Decimal(cost)) else Decimal(cost)


def _allocated(body: Json, parts: dict[str, Json], length: int) -> list[str]:
    """Unused time allocated to each row, and by corrections."""
    figures = [*body["rows"], body["totals"]]
    known = [None if row["allocated_cost"] is None else Decimal(row["allocated_cost"]) for row in figures]
    places = places_of(known)
    if places == 2:
        known = _rather([cents_of(row, "allocated_amount_cents") for row in figures], known)
    amounts = [*rounded(known[:-1], known[-1], places), known[-1]]
    blank = [""] * (length - len(amounts))
    if late := parts.get("corrections", {}).get("allocated_cost"):
        blank[list(parts).index("corrections") - 1] = shown(late, places)
    return [*(shown(amount, places) for amount in amounts), *blank]


def _column(
    rows: Sequence[Json],
    parts: dict[str, Json],
    whole: Json | None,
    amount: Callable[[Json], Decimal | None],
    *,
    least: int = 2,
    cents: Callable[[Json], Decimal | None] = lambda _: None,
) -> list[str]:
    """Cells of the rows, the parts (the first is the rows' total) and the whole. The rounded amounts add up
    to the sums shown, because a reader will check. `cents`: amounts that are rounded already, as on the
    statements."""
    inside, outside = [amount(row) for row in rows], [amount(part) for part in parts.values()]
    total = summed(outside) if whole is None else amount(whole)
    places = max(least, places_of([total, *outside]))
    if places == 2:  # more places contradict no statement
        inside = _rather([cents(row) for row in rows], inside)
        outside = _rather([cents(part) for part in parts.values()], outside)
        total = summed(outside) if whole is None else total
    outside = rounded(outside, total, places)
    inside = rounded(inside, outside[0], places)
    return [shown(a, places) for a in (*inside, *outside, *([] if whole is None else [total]))]


def _rather(cents: list[Decimal | None], amounts: list[Decimal | None]) -> list[Decimal | None]:
    return amounts if None in cents else cents


def _utilisation(rows: Sequence[Json]) -> None:
    heads = ("GPU-hours provisioned", "busy", "utilisation", "cost of unused time")
    costs = [None if row["idleness_cost"] is None else Decimal(row["idleness_cost"]) for row in rows]
    cells = []
    for row, cost in zip(rows, costs, strict=True):
        hours = [shown(row[name], 3) for name in ("provisioned_gpu_hours", "busy_gpu_hours")]
        percent = "-" if row["utilisation"] is None else f"{row['utilisation']:.1%}"
        cells.append([row["gpu_type"], *hours, percent, shown(cost, places_of(costs))])
    show(Text())
    show(table(("gpu type", *heads), cells, right=heads))


def _unit_prices(rows: Sequence[Json], currency: str | None) -> None:
    """A line for each GPU and kind of price, except prices that are unknown."""
    prices = {
        (index, way): [None if row[way][kind] is None else Decimal(row[way][kind]) for kind in _KINDS]
        for index, row in enumerate(rows)
        for way in _WAYS
        if any(row[way].values())
    }
    places = places_of([price for line in prices.values() for price in line])
    cells: list[list[Any]] = []
    for (index, way), line in prices.items():
        row = rows[index]
        what = " ".join(filter(None, (row["gpu_type"], row["region"], row["purchase"].replace("_", " "))))
        cells.append([what, _WAYS[way], *(shown(price, places) for price in line)])
    if cells:
        heads = tuple(_KINDS.values())
        show(Text())
        show(table((f"{currency or 'cost'} per million tokens", "", *heads), cells, right=heads))


def _remarks(body: Json) -> Iterator[str]:
    yield from _unused(body)
    if (left := body.get("unallocated")) is not None and left["cost"] and Decimal(left["cost"]):
        yield f"Of it, {shown(left['cost'], 6)} {body['currency']} is not allocated to any tenant."
    if body.get("rejected"):
        yield f"{body['rejected']:,} requests were rejected before reaching an engine and cost nothing."
    if body.get("weights") == "uncalibrated" and body["rows"]:
        yield "GPU time is divided by uncalibrated weights (input to output 1:2); run florin calibrate."
    elif body.get("weights") == "partly calibrated":
        yield "Some GPU time is divided by uncalibrated weights (input to output 1:2)."
    if (rate := body.get("exchange_rate")) is not None:
        said = f"1 {clean(rate['currency'])} = {clean(rate['rate'])} {clean(body['currency'])}"
        changed = ", at the end of the period: it changed within it" if rate["changed_within"] else ""
        yield f"Converted at {said} ({clean(rate['source'])}, {clean(rate['valid_from'])}{changed})."
    for series in body["missing_prices"]:
        yield _missing(series)
    for name, since in body.get("names_reused", {}).items():
        yield (
            f"{clean(name)} was an earlier tenant's name until {clean(since)}; its rows cover both. --to and "
            "--from tell them apart."
        )
    for one in body.get("set_aside", ()):
        why = f": {one['reason']}" if "reason" in one else ", because its usage is implausible"
        what = f"{one['engine']} at {one['hour']}"
        yield f"Not in these figures: {clean(what)} is set aside{clean(why)}."


def _unused(body: Json) -> Iterator[str]:
    """What the total is, and how much of it no request used."""
    cost = None if body.get("whole") is None else _cost(body["whole"])
    if not cost:
        return
    yield "The total is the provisioned GPU cost at list price."
    for what, names in (
        ("Cost of unused time (idle and start-up)", _UNUSED),
        ("Cost of spare capacity while busy", ("headroom",)),
    ):
        if part := summed([_cost(body[name]["totals"]) for name in names if name in body]):
            money = f"{shown(part, places_of([cost]))} {body['currency']}"
            yield f"{what}: {money}, {part / cost:.1%} of the total."


def _missing(series: dict[str, str]) -> str:
    options = f"--gpu-type {shlex.quote(clean(series['gpu_type']))}"
    if series["region"]:
        options += f" --region {shlex.quote(clean(series['region']))}"
    if series["purchase"] != "on_demand":
        options += f" --purchase {series['purchase']}"
    hours = Decimal(series.get("gpu_hours", "0"))
    without = f", and no amount includes its {shown(hours, 3)} GPU-hours" if hours else ""
    return (
        f"No price for {clean(series['gpu_type'])}{without}: add one with florin price add {options} --rate …"
    )
