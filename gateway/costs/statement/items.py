"""The lines of a statement's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gateway.costs.closing.charging import COST_CHANGED, LATE_RECORDS
from gateway.costs.closing.settlement import CENT, COUNTS, rounded
from gateway.costs.cost_lines import CostLine
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import Tokens, list_price

ONE = Fraction(1)
BY = ("adapter", "version", "base_model", "day")
"""Keys of the lines to read. The day tells which month a correction corrects."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the table."""

    name: str
    """`acme/support@v3`, or the base model."""
    gpu: str
    """GPU type, region and purchase model; empty with a rate card, which knows none."""
    requests: int
    input_tokens: int
    """Computed prompt tokens, without cached ones."""
    cached_tokens: int
    output_tokens: int
    cents: int
    month: str = ""
    """The month that a correction corrects."""
    reason: str = ""
    """Why there is a correction."""

    @property
    def all_input(self) -> int:
        return self.input_tokens + self.cached_tokens


def items_of(
    lines: Sequence[CostLine], document: Mapping[str, Any], factor: Fraction = ONE
) -> dict[str, tuple[Item, ...]]:
    """The document's lines, with usage divided among versions, and corrections among months, too. `factor`:
    of the document's currency."""
    found: dict[str, list[Item]] = {"usage": [], "allocated": [], "corrections": []}
    for entry in document["lines"]:
        if entry["kind"] == "usage":
            found["corrections" if entry["correction"] else "usage"] += _versions(lines, entry, factor)
        elif entry["kind"] == "allocated":
            if entry["correction"]:
                of = ("Share of unused time", _gpu(entry), 0, 0, 0, 0, entry["amount_cents"])
                found["corrections"].append(Item(*of, entry["corrects"], COST_CHANGED))
            else:
                found["allocated"].append(Item("", _gpu(entry), 0, 0, 0, 0, entry["amount_cents"]))
    return {kind: tuple(items) for kind, items in found.items()}


def _versions(lines: Sequence[CostLine], entry: Mapping[str, Any], factor: Fraction) -> list[Item]:
    """One line of the document, divided among versions; the hundredths still sum to it."""
    parts: dict[tuple[str, str, str], list[int]] = {}
    for line in lines:
        adapter, version, base_model, day = line.keys
        same = (
            (line.bucket, adapter, line.correction) == (entry["kind"], entry["adapter"], entry["correction"])
            and (line.gpu_type, line.region, line.purchase)
            == (entry["gpu_type"], entry["region"], entry["purchase"])
        )  # fmt: skip  # the formatter's way hides what is compared
        if same:
            assert line.cost is not None, "checked before"
            key = version, base_model, day[:7] if line.correction else ""
            values = (*(getattr(line, name) for name in COUNTS), line.cost)
            held = parts.setdefault(key, [0] * len(values))
            parts[key] = [a + b for a, b in zip(held, values, strict=True)]
    cents = rounded({key: values[-1] * factor for key, values in parts.items()}, entry["amount_cents"])
    return [_item(entry, key, values, cents[key]) for key, values in sorted(parts.items())]


def _item(entry: Mapping[str, Any], key: tuple[str, str, str], values: list[int], cents: int) -> Item:
    version, base_model, month = key
    requests, prompt, cached, output, *_ = values
    name = f"{entry['adapter']}@{version}" if entry["adapter"] else base_model
    counts = (requests, prompt - cached, cached, output)
    reason = (LATE_RECORDS if any(counts) else COST_CHANGED) if month else ""
    return Item(name, _gpu(entry), *counts, cents, month, reason)


def _gpu(entry: Mapping[str, Any]) -> str:
    purchase = {"on_demand": "", "spot": "spot", "reserved": "reserved"}[entry["purchase"]]
    return ", ".join(part for part in (entry["gpu_type"], entry["region"], purchase) if part)


def priced_items(
    lines: Sequence[CostLine], card: RateCard, charges: Mapping[str, Any] | None, factor: Fraction = ONE
) -> dict[str, tuple[Item, ...]]:
    """Usage at the card's rates, before allowance and minimum, by version; and the corrections."""
    sums: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        if line.bucket == "usage" and not line.correction:
            adapter, version, base_model, _ = line.keys
            name = (f"{adapter}@{version}" if adapter else base_model, "")
            counts = (line.requests, line.prompt_tokens, line.cached_tokens, line.completion_tokens)
            held = sums.setdefault(name, [0, 0, 0, 0])
            sums[name] = [a + b for a, b in zip(held, counts, strict=True)]
    made = charges["lines"] if charges else ()
    tokens = [line for line in made if "tokens" in line]
    prices = {
        key: list_price(card, Tokens(prompt - cached, cached, output)) * factor
        for key, (_, prompt, cached, output) in sums.items()
    }
    whole = int((2 * sum(prices.values()) + CENT) // (2 * CENT))
    if not any(line["free_tokens"] for line in tokens):
        whole = sum(line["amount_cents"] for line in tokens)
    cents = rounded(prices, whole) if prices else {}
    return {
        "usage": tuple(
            Item(key[0], "", requests, prompt - cached, cached, output, cents[key])
            for key, (requests, prompt, cached, output) in sorted(sums.items())
        ),
        "allocated": (),
        "corrections": tuple(
            Item(
                f"Correction of {line['month']}", "", 0, line.get("input_tokens", 0),
                line.get("cached_tokens", 0), line.get("output_tokens", 0), line["amount_cents"],
                line["month"], line["reason"],
            )
            for line in made if line["kind"] == "correction"
        ),
    }  # fmt: skip  # one name a line says no more
