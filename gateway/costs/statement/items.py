"""The lines of a statement's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gateway.costs.closing.charging import COST_CHANGED, LATE_RECORDS
from gateway.costs.closing.documents import (
    Charges,
    CorrectionCharge,
    RequestCharge,
    StatementLine,
    TenantStatement,
    TokenCharge,
)
from gateway.costs.cost_lines import COUNTS, CostLine
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.posted import key_of, tokens_of
from gateway.units import Cents, cents_of, rounded, total

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
    cents: Cents
    month: str = ""
    """The month that a correction corrects."""
    reason: str = ""
    """Why there is a correction."""

    @property
    def all_input(self) -> int:
        return self.input_tokens + self.cached_tokens


def items_of(
    lines: Sequence[CostLine], statement: TenantStatement, factor: Fraction = ONE, step: int = 1
) -> dict[str, tuple[Item, ...]]:
    """The statement's lines, with usage divided among versions, and corrections among months, too. `factor`,
    `step`: of its currency."""
    items: dict[str, list[Item]] = {"usage": [], "allocated": [], "corrections": []}
    for entry in statement.lines:
        if entry.amount_cents is None:
            continue
        if entry.kind == "usage":
            items["corrections" if entry.correction else "usage"] += _versions(
                lines, entry, entry.amount_cents, factor, step
            )
        elif entry.correction:
            share = Item("Share of unused time", _gpu(entry), 0, 0, 0, 0, entry.amount_cents)
            items["corrections"].append(replace(share, month=entry.corrects, reason=COST_CHANGED))
        else:
            items["allocated"].append(Item("", _gpu(entry), 0, 0, 0, 0, entry.amount_cents))
    return {kind: tuple(parts) for kind, parts in items.items()}


def _versions(
    lines: Sequence[CostLine], entry: StatementLine, amount: Cents, factor: Fraction, step: int
) -> list[Item]:
    """One line of the statement, divided among versions; the hundredths still sum to it."""
    parts: dict[tuple[str, str, str], list[int]] = {}
    for line in lines:
        adapter, version, base_model, day = line.keys
        facts = (line.bucket, adapter, line.correction, line.series)
        if facts == (entry.kind, entry.adapter, entry.correction, entry.series):
            assert line.cost is not None, "checked before"
            key = version, base_model, day[:7] if line.correction else ""
            values = (*(getattr(line, name) for name in COUNTS), line.cost)
            before = parts.get(key, [0] * len(values))
            parts[key] = [a + b for a, b in zip(before, values, strict=True)]
    cents = rounded({key: values[-1] * factor for key, values in parts.items()}, amount, step=step)
    return [_item(entry, key, values, cents[key]) for key, values in sorted(parts.items())]


def _item(entry: StatementLine, key: tuple[str, str, str], values: list[int], cents: Cents) -> Item:
    version, base_model, month = key
    requests, prompt, cached, output, *_ = values
    name = f"{entry.adapter}@{version}" if entry.adapter else base_model
    counts = (requests, prompt - cached, cached, output)
    reason = (LATE_RECORDS if any(counts) else COST_CHANGED) if month else ""
    return Item(name, _gpu(entry), *counts, cents, month, reason)


def _gpu(entry: StatementLine) -> str:
    purchase = "" if entry.purchase == "on_demand" else entry.purchase
    return ", ".join(part for part in (entry.gpu_type, entry.region, purchase) if part)


def priced_items(
    lines: Sequence[CostLine],
    card: RateCard,
    charges: Charges | None,
    factor: Fraction = ONE,
    step: int = 1,
) -> dict[str, tuple[Item, ...]]:
    """Usage at the card's list prices, before allowance, tiers, discounts and minimum, by version; and the
    corrections."""
    sums: dict[tuple[str, str], list[int]] = {}
    listed: dict[tuple[str, str], int] = {}
    for line in lines:
        if line.bucket == "usage" and not line.correction:
            adapter, version, base_model, _ = line.keys
            name = (f"{adapter}@{version}" if adapter else base_model, "")
            counts = (line.requests, line.prompt_tokens, line.cached_tokens, line.completion_tokens)
            before = sums.get(name, [0, 0, 0, 0])
            sums[name] = [a + b for a, b in zip(before, counts, strict=True)]
            price = card.list_price(key_of(line, adapter, base_model), tokens_of(line))
            listed[name] = listed.get(name, 0) + price
    charged = charges.lines if charges else ()
    used = [line for line in charged if isinstance(line, TokenCharge | RequestCharge)]
    prices = {key: amount * factor for key, amount in listed.items()}
    in_all = cents_of(sum(prices.values(), Fraction(0)), step)
    if at_list_prices(used) and total(line.exact for line in used) == sum(listed.values()):
        in_all = total(line.amount_cents for line in used)
    cents = rounded(prices, in_all, step=step) if prices else {}
    return {
        "usage": tuple(
            Item(key[0], "", requests, prompt - cached, cached, output, cents[key])
            for key, (requests, prompt, cached, output) in sorted(sums.items())
        ),
        "allocated": (),
        "corrections": tuple(
            Item(
                f"Correction of {line.month}", "", 0, line.input_tokens, line.cached_tokens,
                line.output_tokens, line.amount_cents, line.month, line.reason,
            )
            for line in charged if isinstance(line, CorrectionCharge)
        ),
    }  # fmt: skip  # one name a line says no more


def at_list_prices(charges: Iterable[TokenCharge | RequestCharge]) -> bool:
    """Whether nothing is free, and nothing has tiers."""
    return not any(
        line.tiers or (line.free_tokens if isinstance(line, TokenCharge) else line.free_requests)
        for line in charges
    )
