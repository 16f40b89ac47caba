"""Reconciliation: compares records with the engines' counters and GPU-hours with the provider's bill, and
checks that the ledger is complete. Each difference is a line with its cause; the rest is `unexplained`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import DAY, HOUR, Period, iso, month
from gateway.costs.prices.amounts import decimal_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reconciliation.bill_accounts import Ours
from gateway.costs.reconciliation.bill_check import KINDS, BillAccount, BillDifference, check_bill
from gateway.costs.reconciliation.bill_files import NANO
from gateway.costs.reconciliation.bills import read_bill
from gateway.costs.reconciliation.completeness import completeness
from gateway.costs.reconciliation.counters import REASONS, CounterCheck
from gateway.costs.reconciliation.drift import Unsampled, drift, token_checks, unsampled
from gateway.metering.ledger.ledger import Ledger, pruned_before
from gateway.metering.ledger.schema import engine_hours, engine_spans

__all__ = ["TOLERANCE", "drift", "reconcile"]

TOLERANCE = Fraction(1, 10)
"""Percentage that may remain unexplained, for example by a warm-up or a scrape of /metrics between two
steps."""
_SHOWN = 10
_ATTRIBUTED = {"usage", "retry_waste"}


def reconcile(ledger: Ledger, of: str, *, tolerance: Fraction = TOLERANCE, now: int) -> dict[str, Any]:
    """Reconcile the complete hours of the month `of`. `tolerance`: percent. docs/finance.md shows the result.

    Raises PeriodError, LedgerUnavailableError."""
    whole = month(of)
    within = Period(whole.start, max(whole.start, min(whole.end, now - now % HOUR)))
    with ledger.read() as connection:
        tokens = _tokens(connection, within)
        bill = _bill(connection, within)
        complete = completeness(connection, of, within)
    findings = [
        *_token_findings(tokens, tolerance),
        *_bill_findings(bill, tolerance),
        *_completeness_findings(complete),
    ]
    return {
        "month": of,
        "from": iso(within.start),
        "to": iso(within.end),
        "tolerance_percent": decimal_of(tolerance),
        "tokens": tokens,
        "bill": bill,
        "completeness": complete,
        "unexplained": findings,
        "ok": not findings,
    }


# -- tokens


def _tokens(connection: Connection, within: Period) -> dict[str, Any]:
    removed = pruned_before(connection)
    if removed > within.start:
        note = f"Records before {iso(removed)} were pruned, so the tokens of this month cannot be compared."
        return {"checks": [], "unsampled": [], "note": note}
    return {
        "checks": [_check(found) for found in token_checks(connection, within)],
        "unsampled": [_unsampled(found) for found in unsampled(connection, within)],
        "note": None,
    }


def _check(found: CounterCheck) -> dict[str, Any]:
    return {
        "engine": found.window.engine,
        "epoch": iso(found.window.epoch),
        "from": iso(found.window.start),
        "to": iso(found.window.end),
        "token_type": found.token_type,
        "engine_tokens": found.engine_tokens,
        "record_tokens": found.record_tokens,
        "difference": found.engine_tokens - found.record_tokens,
        "lines": [
            {
                "kind": line.kind,
                "reason": REASONS[line.kind],
                "tokens": line.tokens,
                "at_least": line.low,
                "at_most": line.high,
                "records": line.records,
            }
            for line in found.lines
        ],
        "unexplained": found.rest,
    }


def _unsampled(found: Unsampled) -> dict[str, Any]:
    return {
        "engine": found.engine,
        "from": iso(found.within.start),
        "to": iso(found.within.end),
        "records": found.tally.records,
        "input": found.tally.input,
        "output": found.tally.output,
    }


def _token_findings(tokens: dict[str, Any], tolerance: Fraction) -> list[str]:
    """A sentence for each engine and token type that exceeds the tolerance."""
    found = []
    for one in tokens["checks"]:
        rest, whole = one["unexplained"], max(one["engine_tokens"], one["record_tokens"])
        if abs(rest) * 100 <= tolerance * whole:
            continue
        what = f"{abs(rest):,} {one['token_type']} tokens of {whole:,} since {one['from']}"
        found.append(
            f"{one['engine']} counted {what} without a usage record: other clients use it, it was warmed up, "
            "or it was used before it was registered."
            if rest > 0
            else f"Usage records of {one['engine']} have {what} that the engine never counted."
        )
    return found


# -- the bill


def _bill(connection: Connection, within: Period) -> dict[str, Any] | None:
    """None if no bill was imported for this period."""
    lines = list(read_bill(connection, within))
    if not lines:
        return None
    book = PriceBook(read_prices(connection))
    currency = book.currency or min(line.currency for line in lines)
    known = frozenset(connection.execute(select(engine_spans.c.engine).distinct()).scalars())
    ours = _ours(connection, book, within)
    known |= {own.engine for own in ours}
    accounts = check_bill(lines, ours, known, book.rate, currency, within)
    billed, own = _total(accounts, "billed_nano"), _total(accounts, "provisioned_nano")
    billed_cost = sum((a.billed_cost for a in accounts), Fraction(0))
    own_cost = sum((a.own_cost for a in accounts), Fraction(0))
    differences = [difference for account in accounts for difference in account.differences]
    return {
        "currency": currency,
        "billed_gpu_hours": _hours(billed),
        "provisioned_gpu_hours": _hours(own),
        "attributed_gpu_hours": _hours(_total(accounts, "attributed_nano")),
        "difference_gpu_hours": _hours(billed - own),
        "billed_cost": decimal_of(billed_cost),
        "own_cost": decimal_of(own_cost),
        "difference_cost": decimal_of(billed_cost - own_cost),
        "lines": [_difference(one) for one in _merged(differences)],
        "unexplained_gpu_hours": _hours(_unexplained_nano(differences)),
        "unexplained_cost": decimal_of(_unexplained_cost(differences)),
        "accounts": [_account(account) for account in accounts],
    }


def _ours(connection: Connection, book: PriceBook, within: Period) -> list[Ours]:
    """Provisioned time by engine and GPU, as known now."""
    hours: dict[tuple[str, str, str, str], dict[int, int]] = {}
    counts: dict[tuple[str, str, str, str], int] = {}
    c = engine_hours.c
    query = select(c.engine, c.gpu_type, c.region, c.purchase, c.gpu_count, c.hour, c.nano_gpu_hours).where(
        c.hour >= within.start, c.hour < within.end, c.nano_gpu_hours > 0
    )
    for engine, gpu_type, region, purchase, count, hour, nano in connection.execute(query):
        key = (engine, gpu_type, region, purchase)
        of = hours.setdefault(key, {})
        of[hour] = of.get(hour, 0) + nano
        counts[key] = max(counts.get(key, 0), count)
    attributed: dict[tuple[str, str, str, str], int] = {}
    cost: dict[tuple[str, str, str, str], int] = {}
    for part in _parts(within):
        for line in read_lines(connection, book, part, by=("engine",)):
            key = (line.keys[0], line.gpu_type, line.region, line.purchase)
            cost[key] = cost.get(key, 0) + (line.cost or 0)
            if line.bucket in _ATTRIBUTED:
                attributed[key] = attributed.get(key, 0) + line.nano_gpu_hours
    return [
        Ours(*key, counts[key], hours[key], attributed.get(key, 0), cost.get(key, 0)) for key in sorted(hours)
    ]


def _parts(within: Period) -> Sequence[Period]:
    """The period in two parts, neither a whole month, so that its hours are read as known now: the postings
    of a month include corrections of other months and lack later ones."""
    if within.start == within.end:
        return ()
    middle = min(within.start + DAY, within.end)
    return [
        part for part in (Period(within.start, middle), Period(middle, within.end)) if part.start < part.end
    ]


def _account(account: BillAccount) -> dict[str, Any]:
    return {
        "engine": account.engine,
        "gpu_type": account.gpu_type,
        "region": account.region,
        "purchase": account.purchase,
        "billed_gpu_hours": _hours(account.billed_nano),
        "provisioned_gpu_hours": _hours(account.provisioned_nano),
        "attributed_gpu_hours": _hours(account.attributed_nano),
        "billed_cost": decimal_of(account.billed_cost),
        "own_cost": decimal_of(account.own_cost),
        "billed_rate": _rate(account.billed_cost, account.billed_nano),
        "own_rate": _rate(account.own_cost, account.provisioned_nano),
        "other_currencies": {name: decimal_of(cost) for name, cost in account.other_currencies.items()},
        "lines": [_difference(one) for one in account.differences],
    }


def _difference(one: BillDifference) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "reason": KINDS[one.kind][1],
        "explained": one.explained,
        "gpu_hours": _hours(one.nano),
        "cost": decimal_of(one.cost),
        "hours": one.hours,
        "first": None if one.first is None else iso(one.first),
        "last": None if one.last is None else iso(one.last),
    }


def _merged(differences: Iterable[BillDifference]) -> list[BillDifference]:
    """All accounts, merged by kind."""
    sums: dict[str, list[BillDifference]] = {}
    for one in differences:
        sums.setdefault(one.kind, []).append(one)
    return [
        BillDifference(
            kind,
            sum(one.nano for one in sums[kind]),
            sum((one.cost for one in sums[kind]), Fraction(0)),
            sum(one.hours for one in sums[kind]),
            min((one.first for one in sums[kind] if one.first is not None), default=None),
            max((one.last for one in sums[kind] if one.last is not None), default=None),
        )
        for kind in KINDS
        if kind in sums
    ]


def _unexplained_nano(differences: Iterable[BillDifference]) -> int:
    """Absolute values: two unknown causes do not offset each other."""
    return sum(abs(one.nano) for one in differences if not one.explained)


def _unexplained_cost(differences: Iterable[BillDifference]) -> Fraction:
    return sum((abs(one.cost) for one in differences if not one.explained), Fraction(0))


def _bill_findings(bill: dict[str, Any] | None, tolerance: Fraction) -> list[str]:
    if bill is None:
        return []
    found = []
    for what, unit in (("gpu_hours", "GPU-hours"), ("cost", bill["currency"])):
        rest, whole = Fraction(bill[f"unexplained_{what}"]), Fraction(bill[f"billed_{what}"])
        if rest * 100 > tolerance * abs(whole):
            kinds = [one for one in bill["lines"] if not one["explained"] and Fraction(one[what])]
            reasons = "; ".join(one["reason"] for one in kinds)
            found.append(f"{decimal_of(rest, 6)} of {decimal_of(whole, 6)} {unit} on the bill: {reasons}.")
    return found


def _completeness_findings(complete: dict[str, Any]) -> list[str]:
    found = [
        f"The parts of an engine-hour do not add up to the whole: {one}." for one in complete["imbalances"]
    ]
    found += [
        f"{one['engine']} ({one['gpu_type']}) at {one['hour']} is set aside and in no report or bill: "
        f"{one['reason']}."
        for one in complete["set_aside"][:_SHOWN]
    ]
    if (more := len(complete["set_aside"]) - _SHOWN) > 0:
        found.append(f"{more:,} more engine-hours are set aside: florin cost set-aside.")
    if complete["implausible"]:
        found.append(f"{complete['implausible']:,} records have implausible token counts.")
    if complete["delivered_twice"]:
        found.append(f"{complete['delivered_twice']:,} requests have two billed attempts.")
    if waiting := sum(complete["quarantined"].values()):
        found.append(f"{waiting:,} records are quarantined and need review.")
    return found


def _total(accounts: Iterable[BillAccount], name: str) -> int:
    return sum(getattr(account, name) for account in accounts)


def _hours(nano: int) -> str:
    return decimal_of(Fraction(nano, NANO))


def _rate(cost: Fraction, nano: int) -> str | None:
    """Per GPU-hour, to six places; None without hours."""
    return decimal_of(cost * NANO / nano, 6) if nano > 0 else None
