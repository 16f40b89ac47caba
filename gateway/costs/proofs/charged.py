"""Recomputes what a statement charges, from the records that it covers and the prices that it names. Pure.

Records say how many tokens are charged, and prices what they cost. What a customer cannot recompute is taken
as stated: costs of GPU time, which is withheld; corrections, which follow the allowance and the minimum of
their own month; the hours of resident adapters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from gateway.costs.periods import iso, month_of
from gateway.metering.records import BATCH, CONTINUED, Outcome
from gateway.units import MICRO, decimal_of, half_up

_KINDS = ("input", "cached", "output")
_DECIMAL = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)
_COST = "costs of GPU time"

_Tokens = tuple[int, int, int]
"""In the order of _KINDS; input without cached tokens."""
_Document = Mapping[str, Any]


def wrong_amounts(statement: _Document) -> list[str]:
    """Where its amounts do not follow from its quantities and prices. Raises KeyError, ValueError,
    TypeError."""
    charges = statement.get("charges")
    lines = statement["lines"] if charges is None else charges["lines"]
    wrong = [] if charges is None else list(_wrong_charges(charges))
    if (cents := sum(line["amount_cents"] or 0 for line in lines)) != statement["amount_cents"]:
        wrong.append(f"the lines sum to {cents} cents, not to {statement['amount_cents']}")
    return wrong


def _wrong_charges(charges: _Document) -> Iterator[str]:
    by_kind = {line["kind"]: line for line in charges["lines"]}
    total = of_month = Fraction(0)
    for line in charges["lines"]:
        kind, exact = line["kind"], _decimal(line["exact"])
        due = _due(line, by_kind, of_month)
        if due is not None and due != exact:
            yield f"{kind} is {line['exact']}, but its quantity at its price is {decimal_of(due)}"
        if abs(line["amount_cents"] - 100 * exact) >= 1:
            yield f"{kind} of {line['exact']} is stated as {line['amount_cents']} cents"
        total += exact
        of_month += 0 if kind in {"correction", "cost"} else exact
    if total != _decimal(charges["exact"]):
        yield f"the lines sum to {decimal_of(total)}, not to {charges['exact']}"
    if half_up(100 * total) != charges["amount_cents"]:
        yield f"{charges['exact']} is stated as {charges['amount_cents']} cents"


def _due(line: _Document, by_kind: Mapping[str, _Document], before: Fraction) -> Fraction | None:
    """What a line charges, from its quantity and price; None: it is taken as stated. `before`: the sum of the
    month's lines before it."""
    match line["kind"]:
        case "input" | "cached" | "output":
            return _charged(line) * _decimal(line["per_million"]) / MICRO
        case "batch_discount":
            full = sum((_of_batch(line, by_kind[kind]) for kind in _KINDS), Fraction(0))
            return -full * (100 - int(line["batch_percent"])) / 100
        case "residency":
            hours = sum((_decimal(adapter["hours"]) for adapter in line["adapters"]), Fraction(0))
            return hours * _decimal(line["per_hour"])
        case "minimum":
            return _decimal(line["monthly_minimum"]) - before
        case _:
            return None


def _charged(line: _Document) -> int:
    """Tokens of a line that are not free."""
    free: int = line["free_tokens"]
    return int(line["tokens"] - min(max(free, 0), line["tokens"]))


def _of_batch(discount: _Document, line: _Document) -> Fraction:
    """The price of the charged tokens of batches; free are first those of other requests."""
    count = min(int(discount[f"{line['kind']}_tokens"]), _charged(line))
    return count * _decimal(line["per_million"]) / MICRO


def _decimal(text: str) -> Fraction:
    """Raises ValueError."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not an amount")
    return Fraction(text)


def as_stated(statement: _Document) -> list[str]:
    """What of its amounts neither the records nor its prices say."""
    charges = statement.get("charges")
    if charges is None:
        return [_COST]
    names: dict[str, str | None] = {
        "cost": _COST,
        "residency": "the hours of resident adapters",
        "correction": "corrections of earlier months",
        **dict.fromkeys((*_KINDS, "batch_discount", "minimum")),
    }
    stated = (names.get(line["kind"], f"lines of kind {line['kind']}") for line in charges["lines"])
    return sorted({name for name in stated if name is not None})


def prices(statement: _Document) -> list[str]:
    """For the customer to compare with its contract."""
    lines = (statement.get("charges") or {"lines": ()})["lines"]
    return [
        f"{line['tokens']:,} {line['kind']} tokens, {line['free_tokens']:,} of them free, at "
        f"{line['per_million']} per million"
        for line in lines
        if line["kind"] in _KINDS
    ]


def wrong_quantities(statement: _Document, records: Iterable[_Document]) -> list[str]:
    """Where it does not charge the tokens of its billable records. Raises KeyError, ValueError, TypeError."""
    charges = statement.get("charges")
    if charges is None:
        billed = _summed((f"{r['adapter']} on {r['gpu_type']}", _billed(r)) for r in records)
        usage = (line for line in statement["lines"] if line["kind"] == "usage")
        stated = _summed((f"{line['adapter']} on {line['gpu_type']}", _counted(line)) for line in usage)
        return _differing(stated, billed)
    return _differing(*_by_month(statement["month"], charges["lines"], list(records)))


def _by_month(
    month: str, lines: Iterable[_Document], records: Iterable[_Document]
) -> tuple[dict[str, _Tokens], dict[str, _Tokens]]:
    """What is stated, and what the records say: of the month, of its batches, and of each month that is
    corrected. Where the cost is charged, no tokens are."""
    stated: dict[str, _Tokens] = {}
    charged: dict[str, int] = {}
    by_cost = set()
    for line in lines:
        if line["kind"] in _KINDS:
            charged[line["kind"]] = line["tokens"]
        elif line["kind"] == "batch_discount":
            stated[BATCH] = _all_kinds(line)
        elif line["kind"] == "correction" and line.get("card") is not None:
            stated[line["month"]] = _all_kinds(line)
        elif line["kind"] in {"correction", "cost"}:
            by_cost.add(line.get("month", month))
    if charged:
        stated[month] = (charged["input"], charged["cached"], charged["output"])
    first = month_of(month).start
    billed = _summed((iso(r["ended"])[:7], _billed(r)) for r in records)
    if BATCH in stated:
        batch = (r for r in records if r["ended"] >= first and r.get("service_tier") == BATCH)
        billed |= _summed((BATCH, _billed(r)) for r in batch)
    return stated, {name: tokens for name, tokens in billed.items() if name not in by_cost}


def _billed(record: _Document) -> _Tokens:
    """The tokens that a customer pays for."""
    if not record["billable"] or record["outcome"] == Outcome.REJECTED.value:
        return 0, 0, 0
    fresh, cached, output = _counted(record)
    return (0, 0, output) if record["outcome"] in CONTINUED else (fresh, cached, output)


def _counted(counts: _Document) -> _Tokens:
    cached = counts["cached_tokens"] or 0
    return counts["prompt_tokens"] - cached, cached, counts["completion_tokens"]


def _all_kinds(line: _Document) -> _Tokens:
    return line["input_tokens"], line["cached_tokens"], line["output_tokens"]


def _summed(parts: Iterable[tuple[str, _Tokens]]) -> dict[str, _Tokens]:
    sums: dict[str, _Tokens] = {}
    for name, (fresh, cached, output) in parts:
        before = sums.get(name, (0, 0, 0))
        sums[name] = before[0] + fresh, before[1] + cached, before[2] + output
    return sums


def _differing(stated: Mapping[str, _Tokens], billed: Mapping[str, _Tokens]) -> list[str]:
    none = (0, 0, 0)
    return [
        f"{name}: {kind} {charged:,}, {recorded:,} in records"
        for name in sorted(stated.keys() | billed.keys())
        for kind, charged, recorded in zip(
            _KINDS, stated.get(name, none), billed.get(name, none), strict=True
        )
        if charged != recorded
    ]
