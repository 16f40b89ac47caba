"""Parses a GPU provider's bill: plain CSV, FOCUS 1.0 to 1.4 as CSV, or an AWS Cost and Usage Report. Pure.

A table lists the sources of each field: columns (`Column`) or keys in a JSON column (`Tags.engine`). A
mapping adds a source in front of them, and renames translate the provider's values. Lines about other things
than GPUs are counted and summed separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from adapters.wording import counted
from gateway.costs.periods import PeriodError
from gateway.costs.prices.book import PURCHASES
from gateway.costs.reconciliation import bill_aws
from gateway.costs.reconciliation.bill_cells import LONGEST, BillError, Cells, column_of, rows_of
from gateway.costs.reconciliation.bill_times import looks_inclusive, span
from gateway.units import NANO

MAX_BYTES = 64 * 1024 * 1024
"""Largest file in bytes."""
MAX_LINES = 100_000
"""Most lines about GPUs in one file."""

_CSV: dict[str, tuple[str, ...]] = {
    name: (name,)
    for name in (
        "start", "end", "resource", "gpu_type", "region", "purchase", "gpu_hours", "cost", "currency",
        "description", "category",
    )
}  # fmt: skip  # one name a line says no more
_FOCUS: dict[str, tuple[str, ...]] = {
    "start": ("ChargePeriodStart",),
    "end": ("ChargePeriodEnd",),
    "resource": ("ResourceName", "ResourceId"),
    "gpu_type": ("x_GpuType", "SkuPriceDetails.GpuType", "SkuPriceDetails.x_GpuType", "Tags.gpu_type"),
    "instance": ("SkuPriceDetails.InstanceType", "SkuPriceDetails.x_InstanceType"),
    "gpu_count": ("x_GpuCount", "SkuPriceDetails.GpuCount", "SkuPriceDetails.x_GpuCount", "Tags.gpu_count"),
    "region": ("RegionId",),
    "purchase": ("PricingCategory",),
    "cost": ("BilledCost",),
    "currency": ("BillingCurrency",),
    "category": ("ChargeCategory",),
    "description": ("ChargeDescription",),
    "gpu_hours": (),  # only by mapping, because the quantity columns come with units
}
_FIELDS = {"csv": _CSV, "focus": _FOCUS, "aws": bill_aws.COLUMNS}
_QUANTITIES = {
    "csv": (),
    "focus": (("ConsumedQuantity", "ConsumedUnit"), ("PricingQuantity", "PricingUnit")),
    "aws": bill_aws.QUANTITIES,
}
_REQUIRED = {
    "csv": ("start", "end", "gpu_type", "gpu_hours", "cost", "currency"),
    "focus": ("start", "end", "cost", "currency"),
    "aws": ("start", "end", "cost", "currency", "category"),
}
_PURCHASE = {"standard": "on_demand", "dynamic": "spot", "committed": "reserved", "": "on_demand"}
CATEGORIES = ("usage", "tax", "credit", "purchase", "adjustment")
"""FOCUS's categories of charges, in lower case. `purchase`: fees and upfront payments of commitments."""
_UNIT = re.compile(r"(gpu[ -]?)?(h|hrs?|hours?|m|min|minutes?|s|secs?|seconds?)")
_PER_HOUR = {"h": 1, "m": 60, "s": 3600}
_LARGEST = 10**6
"""Most GPU-hours in one line: more is an error, and sums would not fit in 64 bits."""


@dataclass(frozen=True, slots=True)
class BillLine:
    line: int
    """Line number in the file at which it starts; the header is 1."""
    start: int
    """Unix microseconds, UTC."""
    end: int
    resource: str
    gpu_type: str
    region: str
    purchase: str
    nano_gpu_hours: int
    """Negative: credited. 0: a charge without GPU time."""
    cost: str
    """Exact decimal."""
    currency: str
    description: str
    category: str = "usage"
    """One of CATEGORIES."""


@dataclass(frozen=True, slots=True)
class BadLine:
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class BillFormat:
    """How to read a file."""

    format: str = ""
    """`csv`, `focus`, `aws`, or empty: detected from the header."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Field → `Column` or `Column.key`, tried before the format's own sources."""
    renames: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(field, provider's value) → Florin's value."""
    effective: bool = False
    """FOCUS: use EffectiveCost, which spreads commitments over the usage they cover, instead of the invoiced
    cost."""
    decimal_comma: bool = False
    """Numbers are written like 1.234,56."""
    inclusive_ends: bool = False
    """An end is the last day or second of the line, not the first after it."""
    gpus_only: bool = False
    """Leave out taxes, credits and fees that name no GPU type."""


@dataclass(slots=True)
class Parsed:
    """Mutable while the file is read."""

    format: str
    lines: list[BillLine] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    ignored: int = 0
    """Lines about other things than GPUs."""
    ignored_cost: dict[str, Decimal] = field(default_factory=dict)
    """By currency."""
    inclusive_looking: int = 0
    """Lines whose end was read as exclusive and looks inclusive."""


class _NotGpuError(Exception):
    """A valid line about something other than a GPU."""

    def __init__(self, currency: str, cost: Decimal) -> None:
        super().__init__(currency, cost)
        self.currency = currency
        self.cost = cost


def parse_bill(text: Iterable[str], reading: BillFormat) -> Parsed:
    """Parse a bill from a text file opened with newline="". Raises BillError."""
    rows = rows_of(text)
    heading = next(rows, (0, [], ""))[1]
    columns = {name.strip(): index for index, name in enumerate(heading)}
    if len(columns) != len(heading):
        raise BillError("The header names a column twice.")
    kind = reading.format or _format_of(columns)
    sources = _sources(kind, reading)
    _check_heading(kind, sources, columns)
    parsed = Parsed(kind)
    for number, cells, trouble in rows:
        if trouble or len(cells) != len(heading):
            reason = trouble or f"The line has {counted(len(cells), 'field')}, the header has {len(heading)}."
            parsed.bad.append(BadLine(number, reason))
            continue
        try:
            row = Cells(cells, columns, sources, reading.renames, reading.decimal_comma)
            parsed.lines.append(_line(number, row, kind, reading))
            exclusive = kind != "aws" and not reading.inclusive_ends
            parsed.inclusive_looking += exclusive and looks_inclusive(row.get("end"))
        except _NotGpuError as other:
            parsed.ignored += 1
            before = parsed.ignored_cost.get(other.currency, Decimal(0))
            parsed.ignored_cost[other.currency] = before + other.cost
        except (BillError, PeriodError) as error:
            parsed.bad.append(BadLine(number, str(error)))
        if len(parsed.lines) > MAX_LINES:
            raise BillError(f"More than {MAX_LINES:,} lines about GPUs: split the file.")
    return parsed


def _format_of(columns: Iterable[str]) -> str:
    if "ChargePeriodStart" in columns:
        return "focus"
    return "aws" if any(mark in columns for mark in bill_aws.MARKS) else "csv"


def _sources(kind: str, reading: BillFormat) -> dict[str, tuple[str, ...]]:
    known = dict(_FIELDS[kind])
    if kind == "focus" and reading.effective:
        known["cost"] = ("EffectiveCost",)
    if kind == "aws" and reading.effective:
        raise BillError("An AWS report has no single column of effective costs: export it as FOCUS.")
    for name, source in reading.columns.items():
        if name not in known:
            raise BillError(f"A {kind} bill has no field {name!r}; its fields are {', '.join(known)}.")
        known[name] = (source, *known[name])
    return known


def _check_heading(kind: str, sources: Mapping[str, tuple[str, ...]], columns: Mapping[str, int]) -> None:
    missing = [
        " or ".join(sources[name])
        for name in _REQUIRED[kind]
        if not any(column_of(source, columns)[0] in columns for source in sources[name])
    ]
    quantities = _QUANTITIES[kind]
    measured = any(quantity in columns and unit in columns for quantity, unit in quantities)
    if quantities and not measured and not sources["gpu_hours"]:
        missing.append(" and ".join(quantities[0]))
    if missing:
        raise BillError(f"The header of a {kind} bill must name {', '.join(missing)}.")


def _line(number: int, cells: Cells, kind: str, reading: BillFormat) -> BillLine:
    cost = cells.number("cost", cells.need("cost"))
    currency = cells.need("currency").upper()
    if not re.fullmatch("[A-Z]{3}", currency):
        raise BillError(f"currency: {currency[:40]!r} is not three letters.")
    category = _category(cells.get("category"), kind)
    gpu_type = _gpu_type(cells)
    if category != "usage" and not gpu_type and reading.gpus_only:
        raise _NotGpuError(currency, cost)
    if category == "usage" and _is_of_something_else(cells, kind, gpu_type):
        raise _NotGpuError(currency, cost)
    hours = _hours(cells, kind, gpu_type, category)
    inclusive = reading.inclusive_ends or kind == "aws"  # whose lines of a month end in its last second
    start, end = span(cells.need("start"), cells.need("end"), inclusive=inclusive)
    if abs(hours) > _LARGEST:
        raise BillError(f"More than {_LARGEST:,} GPU-hours in one line.")
    return BillLine(
        line=number,
        start=start,
        end=end,
        resource=cells.name("resource"),
        gpu_type=gpu_type,
        region=cells.name("region"),
        purchase=_purchase(_purchase_text(cells, kind)),
        nano_gpu_hours=_nano(hours),
        cost=f"{cost:f}",
        currency=currency,
        description=cells.get("description")[:LONGEST],
        category=category,
    )


def _gpu_type(cells: Cells) -> str:
    """As the line says it, or else that of its instance type; empty: it is not about GPUs."""
    if stated := cells.name("gpu_type"):
        return stated
    instance = cells.get("instance")
    known, _ = bill_aws.INSTANCES.get(instance, (instance, 0))
    renamed = cells.renames.get(("gpu_type", instance)) or cells.renames.get(("gpu_type", known))
    return renamed or (known if instance in bill_aws.INSTANCES else "")


def _is_of_something_else(cells: Cells, kind: str, gpu_type: str) -> bool:
    """Whether a line of usage is not about GPU time. Raises BillError if it is, and does not say of which."""
    if kind == "aws" and not bill_aws.is_running_time(cells.get("usage_type")):
        return True
    units = [cells.raw(unit).casefold() for _, unit in _QUANTITIES[kind]]
    if gpu_type:  # perhaps only the instance's, of whose network or disk the line is
        stated = kind != "focus" or cells.get("gpu_type") or cells.get("gpu_hours")
        return not stated and not any(map(_UNIT.fullmatch, units))
    if kind == "csv":
        return not cells.get("gpu_hours")
    of_gpus = any(unit.startswith("gpu") for unit in units)
    if kind == "aws" and cells.get("gpu_count").strip("0").isdecimal():
        instance = cells.get("instance")[:40]
        raise BillError(f"The GPU type of {instance!r} is not known: rename gpu_type:{instance} to it.")
    if of_gpus:
        raise BillError("No GPU type: map gpu_type to the column that has it.")
    return not cells.get("gpu_hours")


def _hours(cells: Cells, kind: str, gpu_type: str, category: str) -> Fraction:
    """GPU-hours of a line, which only usage must state."""
    stated = cells.get("gpu_hours")
    if category != "usage" and not (stated and gpu_type):
        return Fraction(0)
    if stated or kind == "csv":
        cells.need("gpu_type")
        return Fraction(cells.number("gpu_hours", cells.need("gpu_hours")))
    quantities = [(cells.raw(quantity), cells.raw(unit)) for quantity, unit in _QUANTITIES[kind]]
    for quantity, unit in quantities:
        match = _UNIT.fullmatch(unit.casefold())
        if match and quantity:
            hours = Fraction(cells.number("quantity", quantity)) / _PER_HOUR[match[2][0]]
            return hours if match[1] else hours * _gpus(cells, unit)
    units = " or ".join(repr(unit) for _, unit in quantities if unit) or "nothing"
    raise BillError(f"The unit must be GPU-Hours or Hours, not {units[:80]}.")


def _gpus(cells: Cells, unit: str) -> Fraction:
    if count := cells.get("gpu_count"):
        return Fraction(cells.number("gpu_count", count))
    _, known = bill_aws.INSTANCES.get(cells.get("instance"), ("", 0))
    if not known:
        raise BillError(f"The unit is {unit!r} but the number of GPUs is missing: map gpu_count.")
    return Fraction(known)


def _purchase_text(cells: Cells, kind: str) -> str:
    if kind == "aws" and not cells.get("purchase"):
        return bill_aws.purchase_of(cells.get("category"), cells.get("usage_type"))
    return cells.get("purchase")


def _category(value: str, kind: str) -> str:
    known = value.casefold() or "usage"
    if kind == "aws":
        known = bill_aws.CATEGORIES.get(known, known)
    if known not in CATEGORIES:
        raise BillError(
            f"category: {value[:40]!r} is not one of {', '.join(CATEGORIES)}; rename it to one of them."
        )
    return known


def _purchase(value: str) -> str:
    known = value.casefold().replace("-", "_").replace(" ", "_")
    known = _PURCHASE.get(known, known)
    if known not in PURCHASES:
        raise BillError(
            f"purchase: {value[:40]!r} is not one of {', '.join(PURCHASES)}; rename it to one of them."
        )
    return known


def _nano(hours: Fraction) -> int:
    """Whole nano-GPU-hours, of 3.6 microseconds each, which is finer than any provider measures."""
    return round(hours * NANO)
