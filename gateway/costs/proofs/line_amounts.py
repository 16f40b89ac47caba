"""What a line of a statement must cost, from what it says itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from gateway.units import FEMTO, MICRO

_DECIMAL = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)
_TOKENS = ("input", "cached", "output", "reasoning")

_Document = Mapping[str, Any]


def line_amount(line: _Document, before: Sequence[_Document], amount_before: Fraction) -> Fraction | None:
    """What a line charges; None: it is taken as stated. `before`: the lines before it, which come to
    `amount_before` without corrections."""
    match line["kind"]:
        case "input" | "cached" | "output" | "reasoning" | "requests":
            return _amount(line, _charged(line))
        case "residency":
            hours = sum((decimal(adapter["hours"]) for adapter in line["adapters"]), Fraction(0))
            return hours * decimal(line["per_hour"])
        case "dedicated":
            hours = sum((decimal(gpus["hours"]) for gpus in line["gpus"]), Fraction(0))
            return hours * decimal(line["per_gpu_hour"])
        case "batch_discount":
            same = (x for x in before if x["kind"] in _TOKENS and x.get("line", "") == line.get("line", ""))
            return -sum((_of_batches(line, kind) for kind in same), Fraction(0))
        case "discount":
            return -_down(amount_before * int(line["percent"]) / 100)
        case "minimum":
            return decimal(line["monthly_minimum"]) - amount_before
        case _:
            return None


def _of_batches(discount: _Document, line: _Document) -> Fraction:
    """What batches' tokens cost less. Free are first those of other requests, and tiers are shared alike."""
    charged = _charged(line)
    count = min(int(discount.get(f"{line['kind']}_tokens", 0)), charged)
    off = 100 - int(discount["batch_percent"])
    return _down(_amount(line, charged) * count * off / (100 * charged)) if charged else Fraction(0)


def _charged(line: _Document) -> int:
    """What is not free."""
    quantity, free = (
        (line["requests"], line["free_requests"])
        if line["kind"] == "requests"
        else (line["tokens"], line["free_tokens"])
    )
    return int(quantity - min(max(free, 0), quantity))


def _amount(line: _Document, quantity: int) -> Fraction:
    base = decimal(line["per_request"] if line["kind"] == "requests" else line["per_million"])
    tiers = [(int(tier["above"]), decimal(tier["unit_price"])) for tier in line.get("tiers", ())]
    if line.get("tier_mode") == "volume":
        amount = quantity * ([base] + [price for above, price in tiers if above < quantity])[-1]
    else:
        steps = [(0, base), *tiers, (quantity, Fraction(0))]
        amount = sum(
            (max(0, min(end, quantity) - above) * price for (above, price), (end, _) in pairwise(steps)),
            Fraction(0),
        )
    return amount if line["kind"] == "requests" else amount / MICRO


def _down(amount: Fraction) -> Fraction:
    """To 15 places."""
    return Fraction(amount * FEMTO // 1, FEMTO)


def decimal(text: str) -> Fraction:
    """Raises ValueError."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not an amount")
    return Fraction(text)
