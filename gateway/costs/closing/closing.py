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

from sqlalchemy import Connection, insert, select, update

from adapters.wording import counted
from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.checks import (
    GRACE,
    ClosingError,
    UnpricedError,
    check_arrived,
    check_balance,
    check_order,
    check_over,
    check_prices,
    check_set_aside,
    stale_hours,
)
from gateway.costs.closing.coverage import BEFORE_ALL, Coverage
from gateway.costs.closing.frozen_rates import calibrations_of, freeze
from gateway.costs.closing.period_hash import (
    HashedPeriod,
    Progress,
    compute_hash,
    previous_root,
    sums_of_records,
)
from gateway.costs.credits.grants import holdings_in, terms_of
from gateway.costs.credits.store import read_grants, store_draws
from gateway.costs.manual_lines.store import lines_to_keep
from gateway.costs.merkle import canonical
from gateway.costs.periods import Period, month_of
from gateway.costs.policies.standing import standing_policy
from gateway.costs.policies.terms import MonthTerms
from gateway.costs.rollups.posted_rows import lock_postings
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.card_store import card_rows
from gateway.costs.selling.dedicated import store_dedicated
from gateway.costs.selling.residency import store_residency
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from gateway.metering.ledger.sealed_months import check_months

__all__ = ["GRACE", "ClosingError", "UnpricedError", "close"]

_ROLL_SECONDS = 5.0


def close(
    ledger: Ledger,
    month: str,
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
    """Close a month. Returns the period's row, and `already`: whether it was closed before. Takes about a
    minute for four million records.

    `actor`: recorded in the audit log; empty to record nothing. `policy`: how to allocate unused time in this
    month, for all tenants; by default the standing policy. `shares`: for policy `fixed`, in any proportion.
    `force`: do not wait for GRACE. Run it in the ledger process; calling it again is safe.

    Raises PeriodError, ClosingError, LedgerUnavailableError."""
    period = month_of(month)
    row = _row(ledger, month)
    if row is None:
        check_over(period, month, now, force=force)
        _flush(ledger, period, now, progress)
        with ledger.write() as connection:
            _cut_off(
                connection,
                month,
                now=now,
                by=by,
                policy=policy,
                shares=shares,
                allow_missing_prices=allow_missing_prices,
            )
        row = _row(ledger, month)
        assert row is not None
    _check_terms(row, policy, shares)
    if row["state"] == "closed":
        return {**row, "already": True}
    hashed = _sum(ledger, row, progress)
    with ledger.write() as connection:
        if _commit(connection, row, hashed, now):
            seal(connection, "month", month)
            details = {"seal": hashed.root, "policy": row["policy"], "records": hashed.summary["records"]}
            record(connection, actor, "period.close", month, details, now)
    closed = _row(ledger, month)
    assert closed is not None
    return {**closed, "already": False}


def _row(ledger: Ledger, month: str) -> dict[str, Any] | None:
    with ledger.read() as connection:
        check_months(connection)
        row = connection.execute(select(periods).where(periods.c.month == month)).mappings().one_or_none()
    return None if row is None else dict(row)


def _check_terms(row: Mapping[str, Any], policy: str | None, shares: Mapping[str, int] | None) -> None:
    """Closing again must use the same terms. A policy that is asked for holds for all tenants."""
    terms = json.loads(row["document"])["terms"]
    same = policy in {None, row["policy"]} and (not shares or shares == terms["shares"])
    if not same or (policy and terms.get("own")):
        own = ", with tenants' own policies," if terms.get("own") else ","
        raise ClosingError(
            f"{row['month']} was closed with policy {row['policy']}{own} which can no longer change."
        )


def _flush(ledger: Ledger, period: Period, now: int, progress: Progress) -> None:
    stale = _stale(ledger, period)
    most = stale
    while stale:
        progress("roll-ups", most - stale, most)
        rolled = roll(ledger, now, patience=_ROLL_SECONDS).rolled
        left = _stale(ledger, period)
        if left >= stale and not rolled:
            raise ClosingError(
                f"{counted(left, 'engine-hour')} of the month or before cannot be rolled up; check the "
                "gateway's log."
            )
        stale, most = left, max(left, most)


def _stale(ledger: Ledger, period: Period) -> int:
    with ledger.read() as connection:
        return stale_hours(connection, period)


def _cut_off(
    connection: Connection,
    month: str,
    *,
    now: int,
    by: str,
    policy: str | None,
    shares: Mapping[str, int] | None,
    allow_missing_prices: bool,
) -> None:
    """In a write transaction. Does nothing if another worker was first."""
    lock_postings(connection)
    cutoff = next_batch(connection)  # all earlier batches are committed; later ones wait
    check_months(connection)
    known = connection.execute(
        select(periods.c.month, periods.c.state, periods.c.cutoff_batch).order_by(periods.c.month)
    ).all()
    if any(row.month == month for row in known):
        return
    check_order(connection, month, [(row.month, row.state) for row in known])
    check_arrived(connection, month)
    check_set_aside(connection, month)
    check_balance(connection, month)
    currency, missing, prices = freeze(connection, month)
    if not allow_missing_prices:
        check_prices(missing)
    agreed = AllocationPolicy(policy, shares or {}) if policy else standing_policy(connection, month)
    terms = {
        **MonthTerms(agreed).document(),
        "currency": currency,
        "prices": prices,
        "missing_prices": missing,
        "calibrations": calibrations_of(connection, month),
        "rate_cards": card_rows(connection),
        "charging": 2,  # rules for who pays a minimum: for a release that has others
        "residency": store_residency(connection, month),
    }
    if dedicated := store_dedicated(connection, month):
        terms["dedicated"] = dedicated
    if lines := lines_to_keep(connection, month):
        terms["manual_lines"] = lines
    if holdings := holdings_in(month, read_grants(connection)):
        terms["credits"] = terms_of(holdings)
    connection.execute(
        insert(periods).values(
            month=month,
            state="closing",
            first_batch=known[-1].cutoff_batch if known else BEFORE_ALL,
            cutoff_batch=cutoff,
            closing_at=now,
            closed_by=by,
            policy=agreed.name,
            policy_shares=canonical(terms["shares"]).decode(),
            currency=currency,
            document=canonical({"terms": terms}).decode(),
        )
    )
    seal(connection, "month", month)


def _sum(ledger: Ledger, row: Mapping[str, Any], progress: Progress) -> HashedPeriod:
    cover = Coverage(row["month"], row["first_batch"], row["cutoff_batch"])
    sums = {tenant: s.document() for tenant, s in sums_of_records(ledger, cover, progress).items()}
    with ledger.read() as connection:
        before = previous_root(connection, row["month"])
    progress("statements", 0, len(sums))
    return compute_hash(ledger, cover, json.loads(row["document"])["terms"], before, sums)


def _commit(connection: Connection, row: Mapping[str, Any], hashed: HashedPeriod, now: int) -> bool:
    """In a write transaction. False if another worker was first; nothing is written then."""
    done = connection.execute(
        update(periods)
        .where(periods.c.month == row["month"], periods.c.state == "closing")
        .values(
            state="closed",
            closed_at=now,
            records=hashed.summary["records"],
            root=hashed.root,
            previous_root=hashed.header["previous_root"],
            document=canonical(
                {
                    "terms": json.loads(row["document"])["terms"],
                    "header": hashed.header,
                    "summary": hashed.summary,
                }
            ).decode(),
        )
    )
    if done.rowcount and hashed.statements:
        rows = [
            {
                "month": row["month"],
                "tenant": statement["tenant"],
                "records": statement["records"],
                "root": statement["root"],
                "document": canonical(statement).decode(),
            }
            for statement in hashed.statements
        ]
        connection.execute(insert(period_tenants), rows)
        store_draws(connection, row["month"], hashed.statements)
    return bool(done.rowcount)
