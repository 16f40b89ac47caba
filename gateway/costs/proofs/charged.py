"""Recomputes what a statement charges, from the records that it covers and the prices that it names. Pure.

Records say how much of what is charged, and prices what it costs. What a customer cannot recompute is taken
as stated: costs of GPU time, which is withheld; corrections, which follow the allowance, tiers and minimum of
their own month; the hours of resident adapters and of dedicated GPUs; what people added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from adapters.model import GENERATE
from gateway.costs.periods import iso, month_of
from gateway.costs.proofs.line_amounts import decimal, line_amount
from gateway.costs.selling.card_lines import KINDS as SOLD
from gateway.costs.selling.card_lines import SELECTORS
from gateway.metering.records import BATCH, CONTINUED, Outcome
from gateway.units import FEMTO, cents_of, decimal_of, step_of

_COST = "costs of GPU time"
_MANUAL = {"fee": 1, "charge": 1, "credit": -1, "refund": -1}
"""Kind → whether it is added or taken off."""
_TOKENS = ("input", "cached", "output")
_UNSAID = {"task": GENERATE}
"""What a record means that leaves it out."""

_Document = Mapping[str, Any]
_Quantities = Mapping[tuple[str, str], int]
"""(for what, kind) → tokens or requests, without those that are zero."""


def wrong_amounts(statement: _Document) -> list[str]:
    """Where its amounts do not follow from its quantities and prices. Raises KeyError, ValueError,
    TypeError."""
    charges = statement.get("charges")
    lines = statement["lines"] if charges is None else charges["lines"]
    wrong = [] if charges is None else list(_wrong_charges(charges, statement.get("currency")))
    manual = statement.get("manual", ())
    wrong += [
        f"a {line['kind']} of {line['amount_cents']} cents"
        for line in manual
        if line["amount_cents"] * _MANUAL[line["kind"]] < 0
    ]
    if (cents := sum(line["amount_cents"] or 0 for line in (*lines, *manual))) != statement["amount_cents"]:
        wrong.append(f"the lines sum to {cents} cents, not to {statement['amount_cents']}")
    return wrong


def _wrong_charges(charges: _Document, currency: str | None) -> Iterator[str]:
    step = _step(charges, currency)
    total = of_month = Fraction(0)
    for n, line in enumerate(charges["lines"]):
        kind, exact = line["kind"], decimal(line["exact"])
        due = line_amount(line, charges["lines"][:n], of_month)
        if due is not None and due != exact:
            yield f"{kind} is {line['exact']}, but its quantity at its price is {decimal_of(due)}"
        if abs(line["amount_cents"] - 100 * exact) >= step:
            yield f"{kind} of {line['exact']} is stated as {line['amount_cents']} cents"
        total += exact
        of_month += 0 if kind in {"correction", "cost"} else exact
    if total != decimal(charges["exact"]):
        yield f"the lines sum to {decimal_of(total)}, not to {charges['exact']}"
    if cents_of(total * FEMTO, step) != charges["amount_cents"]:
        yield f"{charges['exact']} is stated as {charges['amount_cents']} cents"


def _step(charges: _Document, currency: str | None) -> int:
    """Hundredths in what amounts are rounded to. Early releases rounded each currency to hundredths."""
    step = step_of(currency)
    return 1 if any(part["amount_cents"] % step for part in (charges, *charges["lines"])) else step


def as_stated(statement: _Document) -> list[str]:
    """What of its amounts neither the records nor its prices say."""
    charges = statement.get("charges")
    names: dict[str, str | None] = {
        "cost": _COST,
        "residency": "the hours of resident adapters",
        "dedicated": "the hours of dedicated GPUs",
        "correction": "corrections of earlier months",
        **dict.fromkeys((*SOLD, "batch_discount", "discount", "minimum")),
    }
    lines = ({"kind": "cost"},) if charges is None else charges["lines"]
    stated = {names.get(line["kind"], f"lines of kind {line['kind']}") for line in lines}
    added = (f"{line['kind']} of {line['amount_cents']} cents" for line in statement.get("manual", ()))
    return [*sorted(name for name in stated if name is not None), *added]


def prices(statement: _Document) -> list[str]:
    """For the customer to compare with its contract."""
    charges = statement.get("charges") or {"lines": ()}
    return [
        *(_price(line) for line in charges["lines"] if line["kind"] in SOLD),
        *(f"discount of {line['percent']} %" for line in charges["lines"] if line["kind"] == "discount"),
        *(f"line {line['line']} is for {_usage_of(line)}" for line in charges.get("card_lines", ())),
    ]


def _price(line: _Document) -> str:
    if line["kind"] == "requests":
        quantity, free, price = line["requests"], line["free_requests"], f"{line['per_request']} each"
    else:
        quantity, free, price = line["tokens"], line["free_tokens"], f"{line['per_million']} per million"
    name = "requests" if line["kind"] == "requests" else f"{line['kind']} tokens"
    of_line = f" of line {line['line']}" if "line" in line else ""
    mode = f", {line.get('tier_mode', '')} tiers" if line.get("tiers") else ""
    tiers = "".join(f", above {tier['above']:,} {tier['unit_price']}" for tier in line.get("tiers", ()))
    return f"{quantity:,} {name}{of_line}, {free:,} of them free, at {price}{mode}{tiers}"


def _usage_of(line: _Document) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {line[name]}" for name in SELECTORS if name in line)


def wrong_quantities(statement: _Document, records: Iterable[_Document]) -> list[str]:
    """Where it does not charge what its billable records used. Raises KeyError, ValueError, TypeError."""
    charges = statement.get("charges")
    if charges is None:
        billed = _summed((f"{r['adapter']} on {r['gpu_type']}", _tokens(_billed(r))) for r in records)
        usage = (line for line in statement["lines"] if line["kind"] == "usage")
        stated = _summed((f"{line['adapter']} on {line['gpu_type']}", _counted(line)) for line in usage)
        return _differing(stated, billed)
    stated = _stated(statement["month"], charges["lines"])
    return _differing(stated, _recorded(statement["month"], charges, list(records)))


def _stated(month: str, lines: Iterable[_Document]) -> _Quantities:
    """Quantities of the month and its batches, by line of the card, and of each month that is corrected."""
    parts: list[tuple[str, Mapping[str, int]]] = []
    for line in lines:
        place = _place(month, line.get("line", ""))
        if line["kind"] in SOLD:
            parts.append(
                (place, {line["kind"]: line["requests" if line["kind"] == "requests" else "tokens"]})
            )
        elif line["kind"] == "batch_discount":
            names = (*_TOKENS, "reasoning")
            parts.append((f"batches of {place}", {kind: line.get(f"{kind}_tokens", 0) for kind in names}))
        elif line["kind"] == "correction" and line.get("card") is not None:
            parts.append((line["month"], {kind: line[f"{kind}_tokens"] for kind in _TOKENS}))
    return _summed(parts)


def _recorded(month: str, charges: _Document, records: Iterable[_Document]) -> _Quantities:
    """The same, as the records say. Where the cost is charged, nothing else is."""
    lines = charges["lines"]
    by_cost = {line.get("month", month) for line in lines if line["kind"] == "cost" or _corrects_cost(line)}
    sold = {(line.get("line", ""), line["kind"]) for line in lines if line["kind"] in SOLD}
    discounted = {line.get("line", "") for line in lines if line["kind"] == "batch_discount"}
    first = month_of(month).start
    parts: list[tuple[str, Mapping[str, int]]] = []
    for record in records:
        billed, ended = _billed(record), iso(record["ended"])[:7]
        if ended in by_cost or not billed:
            continue
        if record["ended"] < first:
            parts.append((ended, _tokens(billed)))
            continue
        name = _line_for(charges.get("card_lines", ()), record)
        kinds = {kind for line, kind in sold if line == name}
        own = _of_kinds(billed, kinds)
        parts.append((_place(month, name), own))
        if record.get("service_tier") == BATCH and name in discounted:
            batch = {kind: own[kind] for kind in own if kind != "requests"}
            parts.append((f"batches of {_place(month, name)}", batch))
    return _summed(parts)


def _corrects_cost(line: _Document) -> bool:
    return line["kind"] == "correction" and line.get("card") is None


def _place(month: str, line: str) -> str:
    return f"{month}, line {line}" if line else month


def _line_for(card_lines: Iterable[_Document], record: _Document) -> str:
    """By which a record is charged: the first that fits, or else the default one."""
    own = {name: record.get(name) or _UNSAID.get(name, "") for name in SELECTORS}
    for line in card_lines:
        if all(line[name] == own[name] for name in SELECTORS if name in line):
            return str(line["line"])
    return ""


def _of_kinds(billed: Mapping[str, int], sold: Iterable[str]) -> dict[str, int]:
    """As the line sells it: reasoning is output unless it has a price, and requests may have none."""
    kinds = {*_TOKENS, *sold}
    own = {kind: count for kind, count in billed.items() if kind in kinds}
    if "reasoning" in kinds:
        own["output"] -= own["reasoning"]
    return own


def _billed(record: _Document) -> dict[str, int]:
    """What a customer pays for. Of a resumed answer, only what was new: its prompt was read again, and its
    request began before."""
    if not record["billable"] or record["outcome"] == Outcome.REJECTED.value:
        return {}
    counts = {**_counted(record), "reasoning": record["reasoning_tokens"] or 0, "requests": 1}
    return {**counts, "input": 0, "cached": 0, "requests": 0} if record["outcome"] in CONTINUED else counts


def _counted(counts: _Document) -> dict[str, int]:
    cached = counts["cached_tokens"] or 0
    return {
        "input": counts["prompt_tokens"] - cached, "cached": cached, "output": counts["completion_tokens"],
    }  # fmt: skip  # one kind a line says no more


def _tokens(billed: Mapping[str, int]) -> dict[str, int]:
    """Where reasoning tokens are not told apart."""
    return {kind: count for kind, count in billed.items() if kind in _TOKENS}


def _summed(parts: Iterable[tuple[str, Mapping[str, int]]]) -> _Quantities:
    sums: Counter[tuple[str, str]] = Counter()
    for name, counts in parts:
        for kind, count in counts.items():
            sums[name, kind] += count
    return {key: count for key, count in sums.items() if count}


def _differing(stated: _Quantities, recorded: _Quantities) -> list[str]:
    return [
        f"{name}: {kind} {stated.get((name, kind), 0):,}, {recorded.get((name, kind), 0):,} in records"
        for name, kind in sorted(stated.keys() | recorded.keys())
        if stated.get((name, kind), 0) != recorded.get((name, kind), 0)
    ]
