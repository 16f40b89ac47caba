"""Closing a month: its figures never change afterwards, and a Merkle root proves what they are.

1. Flush: roll up every stale engine-hour of the month.
2. Cut off, in one transaction: fix the covered records, freeze the rates of the month's rows, and store the
   price book. Later changes to the month's hours become correction rows in the next open month.
3. Sum, without locks: build the tree of each tenant's records, its statement, and the root.
4. Commit, in one transaction: write statements and root.

After a crash, close again: step 1 can be repeated, steps 2 and 4 are atomic, and step 3 is a function of what
step 2 froze. If two workers close at once, both do the same work and one of them writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from gateway.costs.closing.coverage import BEFORE_ALL, Coverage
from gateway.costs.closing.frozen_rates import calibrations_of, freeze
from gateway.costs.closing.period_hash import (
    HashedPeriod,
    Progress,
    compute_hash,
    previous_root,
    sums_of_records,
)
from gateway.costs.periods import HOUR, Period, iso, month
from gateway.costs.proofs.merkle import canonical
from gateway.costs.rollups.balance import imbalances
from gateway.costs.rollups.rollup import lock_postings, roll
from gateway.costs.rollups.set_aside import hour_text, read_set_aside
from gateway.costs.selling.card_store import card_rows
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.ledger import Ledger, next_batch
from gateway.metering.ledger.schema import dirty_hours, period_tenants, periods, rollups, usage_records

GRACE = HOUR
"""Wait after the end of a month before closing it: until then workers may still hold records in their
logs."""
_ROLL_SECONDS = 5.0


class ClosingError(Exception):
    """The month cannot be closed as requested; the message says why and what to do."""


class UnpricedError(ClosingError):
    """Some of the month's GPU-time has no price."""


def close(
    ledger: Ledger,
    of: str,
    *,
    now: int,
    by: str,
    actor: str = "",
    policy: str | None = None,
    shares: Mapping[str, int] | None = None,
    allow_missing_prices: bool = False,
    force: bool = False,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Close the month `of`. Returns the period's row, and `already`: whether it was closed before. Takes
    about a minute for four million records.

    `actor`: recorded in the audit log; empty to record nothing. `policy`: allocation of unused time, `none`
    by default. `shares`: for policy `fixed`, in any proportion. `force`: do not wait for GRACE. Run it in the
    ledger process; calling it again is safe.

    Raises PeriodError, ClosingError, LedgerUnavailableError."""
    whole = month(of)
    held = _row(ledger, of)
    if held is None:
        _check_over(whole, of, now, force=force)
        _flush(ledger, whole, now, progress)
        with ledger.write() as connection:
            _cut_off(
                connection,
                of,
                now=now,
                by=by,
                policy=policy or "none",
                shares=shares or {},
                allow_missing_prices=allow_missing_prices,
            )
        held = _row(ledger, of)
        assert held is not None
    _check_terms(held, policy, shares)
    if held["state"] == "closed":
        return {**held, "already": True}
    hashed = _sum(ledger, held, progress)
    with ledger.write() as connection:
        if _commit(connection, held, hashed, now):
            told = {"root": hashed.root, "policy": held["policy"], "records": hashed.summary["records"]}
            record(connection, actor, "period.close", of, told, now)
    closed = _row(ledger, of)
    assert closed is not None
    return {**closed, "already": False}


def _row(ledger: Ledger, of: str) -> dict[str, Any] | None:
    with ledger.read() as connection:
        row = connection.execute(select(periods).where(periods.c.month == of)).mappings().one_or_none()
    return None if row is None else dict(row)


def _check_over(whole: Period, of: str, now: int, *, force: bool) -> None:
    if now < whole.end:
        raise ClosingError(f"{of} is not over yet; it ends {iso(whole.end)}.")
    if now < whole.end + GRACE and not force:
        raise ClosingError(
            f"{of} ended less than an hour ago, and workers may not have shipped all its "
            f"records. Close it after {iso(whole.end + GRACE)}, or with force: "
            "records that arrive later are corrected in the next month."
        )


def _check_terms(held: Mapping[str, Any], policy: str | None, shares: Mapping[str, int] | None) -> None:
    """Closing again must use the same terms."""
    same = policy in {None, held["policy"]} and (not shares or shares == json.loads(held["policy_shares"]))
    if not same:
        raise ClosingError(
            f"{held['month']} was closed with policy {held['policy']}, which can no longer change."
        )


def _flush(ledger: Ledger, whole: Period, now: int, progress: Progress) -> None:
    stale = _stale(ledger, whole)
    most = stale
    while stale:
        progress("roll-ups", most - stale, most)
        rolled = roll(ledger, now, patience=_ROLL_SECONDS).rolled
        left = _stale(ledger, whole)
        if left >= stale and not rolled:
            raise ClosingError(
                f"{left} engine-hours of the month or before cannot be rolled up; check the gateway's log."
            )
        stale, most = left, max(left, most)


def _stale(ledger: Ledger, whole: Period) -> int:
    with ledger.read() as connection:
        return _stale_hours(connection, whole)


def _stale_hours(connection: Connection, whole: Period) -> int:
    query = select(func.count()).select_from(dirty_hours).where(dirty_hours.c.hour < whole.end)
    return int(connection.execute(query).scalar_one())


def _cut_off(
    connection: Connection,
    of: str,
    *,
    now: int,
    by: str,
    policy: str,
    shares: Mapping[str, int],
    allow_missing_prices: bool,
) -> None:
    """In a write transaction. Does nothing if another worker was first."""
    whole = month(of)
    lock_postings(connection)
    cutoff = next_batch(connection)  # all earlier batches are committed; later ones wait
    known = connection.execute(
        select(periods.c.month, periods.c.state, periods.c.cutoff_batch).order_by(periods.c.month)
    ).all()
    if any(row.month == of for row in known):
        return
    _check_order(connection, of, whole, [(row.month, row.state) for row in known])
    if stale := _stale_hours(connection, whole):
        raise ClosingError(f"Usage of {of} is still arriving ({stale} engine-hours); try again.")
    _check_set_aside(connection, of, whole)
    if wrong := imbalances(connection, of):
        raise ClosingError(
            "The parts of some engine-hours do not add up to the whole, because of a defect or tampering: "
            + "; ".join(map(str, wrong))
        )
    currency, missing, prices = freeze(connection, of)
    if missing and not allow_missing_prices:
        names = ", ".join(" ".join(part for part in series if part) for series in missing)
        raise UnpricedError(
            f"No price for {names}: add one (florin price add), or allow missing prices: this time is then "
            "free in this month, and a price added later becomes a correction in the next."
        )
    terms = {
        "policy": policy,
        "shares": dict(shares),
        "currency": currency,
        "prices": prices,
        "missing_prices": missing,
        "calibrations": calibrations_of(connection, of),
        "rate_cards": card_rows(connection),
    }
    connection.execute(
        insert(periods).values(
            month=of,
            state="closing",
            first_batch=known[-1].cutoff_batch if known else BEFORE_ALL,
            cutoff_batch=cutoff,
            closing_at=now,
            closed_by=by,
            policy=policy,
            policy_shares=canonical(dict(shares)).decode(),
            currency=currency,
            document=canonical({"terms": terms}).decode(),
        )
    )


def _check_set_aside(connection: Connection, of: str, whole: Period) -> None:
    """Usage that is set aside when the month closes would never be billed."""
    aside = read_set_aside(connection, Period(-(2**63), whole.end))
    if aside:
        first = aside[0]
        raise ClosingError(
            f"{len(aside)} engine-hours up to the end of {of} are set aside because of implausible usage; "
            f"the first is {first}. See florin cost set-aside. To quarantine the implausible records and "
            f"roll up the rest of the hour: florin cost exclude {first.engine} {hour_text(first.hour)}"
        )


def _check_order(connection: Connection, of: str, whole: Period, known: list[tuple[str, str]]) -> None:
    """Months close in order. Months without usage may be skipped, and then stay skipped."""
    if half := next((name for name, state in known if state != "closed"), None):
        raise ClosingError(f"Closing {half} was interrupted; close {half} again first.")
    latest = known[-1][0] if known else None
    if latest is not None and latest > of:
        raise ClosingError(
            f"{latest} is already closed and {of}, which had no usage, was skipped. Usage of {of} "
            "that arrives late is in the open month."
        )
    since = month(latest).end if latest else 0
    ended = usage_records.c.ended
    first = connection.execute(
        select(func.min(ended)).where(ended >= since, ended < whole.start)
    ).scalar_one()
    posted = select(func.min(rollups.c.posted)).where(
        rollups.c.posted > (latest or ""), rollups.c.posted < of
    )
    names = {connection.execute(posted).scalar_one(), None if first is None else iso(first)[:7]} - {None}
    if names:
        raise ClosingError(f"{min(names)} has usage and is not closed; close it first.")


def _sum(ledger: Ledger, held: Mapping[str, Any], progress: Progress) -> HashedPeriod:
    cover = Coverage(held["month"], held["first_batch"], held["cutoff_batch"])
    sums = {tenant: s.document() for tenant, s in sums_of_records(ledger, cover, progress).items()}
    with ledger.read() as connection:
        before = previous_root(connection, held["month"])
    progress("statements", 0, len(sums))
    return compute_hash(ledger, cover, json.loads(held["document"])["terms"], before, sums)


def _commit(connection: Connection, held: Mapping[str, Any], hashed: HashedPeriod, now: int) -> bool:
    """In a write transaction. False if another worker was first; nothing is written then."""
    done = connection.execute(
        update(periods)
        .where(periods.c.month == held["month"], periods.c.state == "closing")
        .values(
            state="closed",
            closed_at=now,
            records=hashed.summary["records"],
            root=hashed.root,
            previous_root=hashed.header["previous_root"],
            document=canonical(
                {
                    "terms": json.loads(held["document"])["terms"],
                    "header": hashed.header,
                    "summary": hashed.summary,
                }
            ).decode(),
        )
    )
    if done.rowcount and hashed.statements:
        rows = [
            {
                "month": held["month"],
                "tenant": statement["tenant"],
                "records": statement["records"],
                "root": statement["root"],
                "document": canonical(statement).decode(),
            }
            for statement in hashed.statements
        ]
        connection.execute(insert(period_tenants), rows)
    return bool(done.rowcount)
