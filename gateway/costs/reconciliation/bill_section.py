"""The part of a reconciliation about the bill: GPU-hours and cost against Florin's observations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.commitments.commitment import UnusedCapacity
from gateway.costs.commitments.commitment_store import uses_of
from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.exchange_rates import read_exchange_rates
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reconciliation.bill_accounts import Ours
from gateway.costs.reconciliation.bill_check import check_bill
from gateway.costs.reconciliation.bill_differences import KINDS, BillAccount, BillDifference
from gateway.costs.reconciliation.bills import read_bill, sources_of
from gateway.costs.reconciliation.foreign_bills import converted, totals
from gateway.costs.reconciliation.verdicts import Acceptance, Amounts, Verdict, described, line_id, overall
from gateway.costs.rollups.provisioned import provisioned
from gateway.metering.ledger.schema import engine_spans
from gateway.units import DAY, NANO, decimal_of

_ATTRIBUTED = {"usage", "retry_waste"}
UNSETTLED = {Verdict.IDENTIFIED, Verdict.UNIDENTIFIED}
"""Verdicts that stand against a reconciliation."""


@dataclass(frozen=True, slots=True)
class BillCheck:
    """A month's bill against Florin's observations."""

    currency: str
    accounts: Sequence[BillAccount]
    sources: Sequence[str]
    """SHA-256 of the files."""
    exchange_rates: Sequence[Mapping[str, Any]] = ()
    """At which lines in other currencies were converted."""
    billed: Mapping[str, str] = field(default_factory=dict)
    """The lines' totals in their own currencies."""

    @property
    def differences(self) -> list[BillDifference]:
        return [difference for account in self.accounts for difference in account.differences]

    @property
    def billed_cost(self) -> Fraction:
        return sum((a.billed_cost for a in self.accounts), Fraction(0))

    @property
    def own_cost(self) -> Fraction:
        return sum((a.own_cost for a in self.accounts), Fraction(0))


def checked_bill(connection: Connection, within: Period) -> BillCheck | None:
    """None if no bill was imported for this period."""
    lines = list(read_bill(connection, within))
    if not lines:
        return None
    book = PriceBook(read_prices(connection))
    currency = book.currency or min(line.currency for line in lines)
    known = frozenset(connection.execute(select(engine_spans.c.engine).distinct()).scalars())
    ours = _ours(connection, book, within)
    known |= {own.engine for own in ours}
    unused = UnusedCapacity(uses_of(connection, within))
    foreign = converted(lines, currency, read_exchange_rates(connection), within.end)
    accounts = check_bill(foreign.lines, ours, known, book.rate, currency, within, unused=unused)
    billed = totals(lines, within.start, within.end)
    return BillCheck(currency, accounts, sources_of(connection, within), foreign.document(), billed)


def bill_section(
    connection: Connection, month: str, within: Period, acceptances: Mapping[str, Acceptance]
) -> dict[str, Any] | None:
    """The bill of the month within the period; None if none was imported."""
    checked = checked_bill(connection, within)
    return None if checked is None else _section(checked, month, acceptances)


def _section(checked: BillCheck, month: str, acceptances: Mapping[str, Acceptance]) -> dict[str, Any]:
    billed, own = _total(checked.accounts, "billed_nano"), _total(checked.accounts, "provisioned_nano")
    differences = checked.differences
    accounts = [_account(account, month, acceptances) for account in checked.accounts]
    shown = [line for account in accounts for line in account["lines"]]
    unaccepted = [line for line in shown if line["verdict"] in UNSETTLED]
    return {
        "currency": checked.currency,
        "exchange_rates": list(checked.exchange_rates),
        "verdict": overall(Verdict(line["verdict"]) for line in shown).value,
        "billed_gpu_hours": _hours(billed),
        "provisioned_gpu_hours": _hours(own),
        "attributed_gpu_hours": _hours(_total(checked.accounts, "attributed_nano")),
        "difference_gpu_hours": _hours(billed - own),
        "billed_cost": decimal_of(checked.billed_cost),
        "own_cost": decimal_of(checked.own_cost),
        "difference_cost": decimal_of(checked.billed_cost - checked.own_cost),
        "lines": [_by_kind(difference, shown) for difference in merged(differences)],
        "unexplained_gpu_hours": _hours(_unexplained_nano(differences)),
        "unexplained_cost": decimal_of(_unexplained_cost(differences)),
        "unaccepted_gpu_hours": decimal_of(_absolute(unaccepted, "gpu_hours")),
        "unaccepted_cost": decimal_of(_absolute(unaccepted, "cost")),
        "accounts": accounts,
    }


def _ours(connection: Connection, book: PriceBook, within: Period) -> list[Ours]:
    """Provisioned time by engine and GPU, as known now."""
    hours: dict[tuple[str, str, str, str], dict[int, int]] = {}
    counts: dict[tuple[str, str, str, str], int] = {}
    for engine, gpu_type, count, region, purchase, hour, nano in provisioned(connection, within):
        key = (engine, gpu_type, region, purchase)
        own_hours = hours.setdefault(key, {})
        own_hours[hour] = own_hours.get(hour, 0) + nano
        counts[key] = max(counts.get(key, 0), count)
    attributed: dict[tuple[str, str, str, str], int] = {}
    cost: dict[tuple[str, str, str, str], int] = {}
    for part in _parts(within):
        for line in read_lines(connection, book, part, by=("engine",)):
            key = (line.keys[0], *line.series)
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


def _account(account: BillAccount, month: str, acceptances: Mapping[str, Acceptance]) -> dict[str, Any]:
    names = (account.engine, account.gpu_type, account.region, account.purchase)
    lines = []
    for difference in account.differences:
        amounts = Amounts(difference.nano, decimal_of(difference.cost))
        name = line_id(month, "bill", *names, difference.kind)
        state = described(
            name, amounts, acceptances, identified=difference.explained, matched=difference.matched
        )
        lines.append({**state, **_difference(difference)})
    return {
        "verdict": overall(Verdict(line["verdict"]) for line in lines).value,
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
        "lines": lines,
    }


def _difference(difference: BillDifference) -> dict[str, Any]:
    return {
        "kind": difference.kind,
        "reason": difference.reason,
        "explained": difference.explained,
        "gpu_hours": _hours(difference.nano),
        "cost": decimal_of(difference.cost),
        "hours": difference.hours,
        "first": None if difference.first is None else iso(difference.first),
        "last": None if difference.last is None else iso(difference.last),
    }


def _by_kind(difference: BillDifference, shown: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All lines of one kind as one."""
    of_kind = [line for line in shown if line["kind"] == difference.kind]
    return {
        "verdict": overall(Verdict(line["verdict"]) for line in of_kind).value,
        "lines": len(of_kind),
        "unaccepted": sum(line["verdict"] in UNSETTLED for line in of_kind),
        **_difference(difference),
    }


def merged(differences: Iterable[BillDifference]) -> list[BillDifference]:
    """All accounts, merged by kind."""
    sums: dict[str, list[BillDifference]] = {}
    for difference in differences:
        sums.setdefault(difference.kind, []).append(difference)
    return [
        BillDifference(
            kind,
            sum(difference.nano for difference in sums[kind]),
            sum((difference.cost for difference in sums[kind]), Fraction(0)),
            sum(difference.hours for difference in sums[kind]),
            min(
                (difference.first for difference in sums[kind] if difference.first is not None), default=None
            ),
            max((difference.last for difference in sums[kind] if difference.last is not None), default=None),
        )
        for kind in KINDS
        if kind in sums
    ]


def _unexplained_nano(differences: Iterable[BillDifference]) -> int:
    """Absolute values: two unknown causes do not offset each other."""
    return sum(abs(difference.nano) for difference in differences if not difference.explained)


def _unexplained_cost(differences: Iterable[BillDifference]) -> Fraction:
    return sum((abs(difference.cost) for difference in differences if not difference.explained), Fraction(0))


def _absolute(lines: Iterable[dict[str, Any]], what: str) -> Fraction:
    """Absolute values: two differences do not offset each other."""
    return sum((abs(Fraction(line[what])) for line in lines), Fraction(0))


def bill_findings(bill: dict[str, Any] | None, month: str, tolerance: Fraction) -> list[str]:
    """A sentence if no bill was imported, and for what is identified and not accepted beyond the
    tolerance."""
    if bill is None:
        obstacle = f"No bill is imported for {month}, so its cost is not reconciled"
        return [f"{obstacle}: florin cost import-bill FILE."]
    findings = []
    for what, unit in (("gpu_hours", "GPU-hours"), ("cost", bill["currency"])):
        rest, billed = Fraction(bill[f"unaccepted_{what}"]), Fraction(bill[f"billed_{what}"])
        if rest * 100 > tolerance * abs(billed):
            kinds = [line for line in bill["lines"] if line["unaccepted"] and Fraction(line[what])]
            reasons = "; ".join(line["reason"] for line in kinds)
            findings.append(
                f"{decimal_of(rest, 6)} {unit}, of {decimal_of(billed, 6)} billed, not accepted: {reasons}."
            )
    return findings


def _total(accounts: Iterable[BillAccount], name: str) -> int:
    return sum(getattr(account, name) for account in accounts)


def _hours(nano: int) -> str:
    return decimal_of(Fraction(nano, NANO))


def _rate(cost: Fraction, nano: int) -> str | None:
    """Per GPU-hour, to six places; None without hours."""
    return decimal_of(cost * NANO / nano, 6) if nano > 0 else None
