"""Whether a month can be closed: each check raises what is in the way, and says what to do about it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, select

from adapters.wording import counted
from gateway.costs.credits.store import first_open_credit
from gateway.costs.manual_lines.lines import month_lines
from gateway.costs.manual_lines.store import first_open_line, read_manual_lines
from gateway.costs.periods import Period, iso, month_of, months
from gateway.costs.prices.book import Series
from gateway.costs.rollups.balance import imbalances
from gateway.costs.rollups.set_aside import hour_text, read_set_aside
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.posted import charged_tenants
from gateway.metering.ledger.schema import dirty_hours, rollups, usage_records
from gateway.units import HOUR

GRACE = HOUR
"""Wait after the end of a month before closing it: until then workers may still hold records in their
logs."""


class ClosingError(Exception):
    """The month cannot be closed as requested; the message says why and what to do."""


class UnpricedError(ClosingError):
    """Some of the month's GPU time has no price."""


def check_over(period: Period, month: str, now: int, *, force: bool) -> None:
    if now < period.end:
        raise ClosingError(f"{month} is not over yet; it ends {iso(period.end)}.")
    if now < period.end + GRACE and not force:
        raise ClosingError(
            f"{month} ended less than an hour ago, and workers may not have shipped all its "
            f"records. Close it after {iso(period.end + GRACE)}, or with force: "
            "records that arrive later are corrected in the next month."
        )


def stale_hours(connection: Connection, period: Period) -> int:
    query = select(func.count()).select_from(dirty_hours).where(dirty_hours.c.hour < period.end)
    return int(connection.execute(query).scalar_one())


def check_arrived(connection: Connection, month: str) -> None:
    if stale := stale_hours(connection, month_of(month)):
        raise ClosingError(
            f"Usage of {month} is still arriving ({counted(stale, 'engine-hour')}); try again."
        )


def check_set_aside(connection: Connection, month: str) -> None:
    """Usage that is set aside when the month closes would never be billed."""
    aside = read_set_aside(connection, Period(-(2**63), month_of(month).end))
    if aside:
        first = aside[0]
        raise ClosingError(
            f"{counted(len(aside), 'engine-hour is', 'engine-hours are')} set aside because of implausible "
            f"usage, up to the end of {month}; the first is {first}. See florin cost set-aside. To "
            "quarantine the implausible records and roll up the rest of the hour: florin cost exclude "
            f"{first.engine} {hour_text(first.hour)}"
        )


def check_balance(connection: Connection, month: str) -> None:
    if wrong := imbalances(connection, month):
        raise ClosingError(
            "The parts of some engine-hours do not add up to the whole, because of a defect or tampering: "
            + "; ".join(map(str, wrong))
        )


def check_prices(missing: Iterable[Series]) -> None:
    names = ", ".join(" ".join(part for part in series if part) for series in missing)
    if names:
        raise UnpricedError(
            f"No price for {names}: add one (florin price add), or allow missing prices: this time is then "
            "free in this month, and a price added later becomes a correction in the next."
        )


def check_order(connection: Connection, month: str, known: list[tuple[str, str]]) -> None:
    """Months close in order. Months without usage may be skipped, and then stay skipped."""
    if half := next((name for name, state in known if state != "closed"), None):
        raise ClosingError(f"Closing {half} was interrupted; close {half} again first.")
    latest = known[-1][0] if known else None
    if latest is not None and latest > month:
        raise ClosingError(
            f"{latest} is already closed and {month}, which had no usage, was skipped. Usage of "
            f"{month} that arrives late is in the open month."
        )
    since, period = month_of(latest).end if latest else 0, month_of(month)
    ended = usage_records.c.ended
    first = connection.execute(
        select(func.min(ended)).where(ended >= since, ended < period.start)
    ).scalar_one()
    posted = select(func.min(rollups.c.posted)).where(
        rollups.c.posted > (latest or ""), rollups.c.posted < month
    )
    used = {connection.execute(posted).scalar_one(), None if first is None else iso(first)[:7]} - {None}
    if used:
        raise ClosingError(f"{min(used)} has usage and is not closed; close it first.")
    lines = first_open_line(connection, latest or "")
    if lines is not None and lines < month:
        raise ClosingError(f"{lines} has manual lines and is not closed; close it first.")
    credit = first_open_credit(connection, latest or "")
    if credit is not None and credit < month:
        raise ClosingError(f"Prepaid credits begin or end in {credit}, which is not closed; close it first.")
    # Not before the first close: assignments may begin long before the installation.
    if latest is not None and (owed := _owed(connection, Period(since, period.start))) is not None:
        raise ClosingError(
            f"{owed} has fees, minimums or resident adapters to charge and is not closed; close it first."
        )


def _owed(connection: Connection, skipped: Period) -> str | None:
    """The first month for which somebody pays without usage."""
    cards, lines = read_cards(connection), read_manual_lines(connection)
    return next(
        (
            name
            for name in months(skipped) or ()
            if month_lines(lines, name) or charged_tenants(connection, name, cards)
        ),
        None,
    )
