"""Reads and extends the grants in the ledger, and keeps what closed months have drawn of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from gateway.costs.credits.grants import Grant
from gateway.costs.periods import iso
from gateway.costs.prices.repricing import opened_at
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.costs.selling.smallest_unit import require_whole
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import credit_draws, credit_grants
from gateway.units import Cents

_COLUMNS = tuple(f.name for f in fields(Grant) if f.name != "drawn")


class UnknownGrantError(Exception):
    """There is no grant of that id."""


def read_grants(connection: Connection, tenant: str | None = None) -> list[Grant]:
    """Oldest first, with what closed months have drawn."""
    sums = (
        select(credit_draws.c.grant_id, func.sum(credit_draws.c.cents).label("drawn"))
        .group_by(credit_draws.c.grant_id)
        .subquery()
    )
    query = (
        select(*(credit_grants.c[name] for name in _COLUMNS), func.coalesce(sums.c.drawn, 0))
        .outerjoin(sums, sums.c.grant_id == credit_grants.c.id)
        .order_by(credit_grants.c.id)
    )
    if tenant is not None:
        query = query.where(credit_grants.c.tenant == tenant)
    return [replace(Grant(*row[:-1]), drawn=Cents(int(row[-1]))) for row in connection.execute(query)]


def list_grants(ledger: Ledger, tenant: str | None) -> list[Grant]:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_grants(connection, tenant)


def first_open_credit(connection: Connection, after: str) -> str | None:
    """The first month after another in which a grant begins or ends."""
    edges = (credit_grants.c.begins, credit_grants.c.ends)
    months = [connection.execute(select(func.min(edge)).where(edge > after)).scalar() for edge in edges]
    return min(filter(None, months), default=None)


def add_grant(ledger: Ledger, new: Grant, *, actor: str) -> tuple[Grant, bool]:
    """Record a grant. Returns it, and False if it is there already, by its reference.

    Raises RateCardError, RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # so that a month is closed either before or after, and each reference is once
        same = next(
            (g for g in read_grants(connection) if new.reference and g.reference == new.reference), None
        )
        if same is not None:
            # What was left out was chosen here; and one that has ended since is the same grant.
            if same.terms == replace(new, begins=new.begins or same.begins, ends=new.ends or same.ends).terms:
                return same, False
            raise RateCardConflictError(f"{new.reference[:60]!r} is grant {same.id}, which has other terms.")
        opened = iso(opened_at(connection))[:7]
        new = replace(new, begins=new.begins or max(iso(new.granted_at)[:7], opened))
        _check(connection, new, opened)
        row = {name: value for name, value in asdict(new).items() if name in _COLUMNS and name != "id"}
        key = connection.execute(insert(credit_grants).values(row)).inserted_primary_key
        assert key is not None
        new = replace(new, id=key[0])
        seal(connection, "credit", new.id)
        record(connection, actor, "credit.grant", new.tenant, new.document(), new.granted_at)
        return new, True


def _check(connection: Connection, new: Grant, opened: str) -> None:
    if new.begins < opened:
        raise RateCardError("begins", f"Months before {opened} are closed, and stay as they are.")
    if new.ends and new.ends < new.begins:
        raise RateCardError("ends", f"The grant would end before it begins, in {new.begins}.")
    require_whole(connection, new.cents)


def end_grant(ledger: Ledger, number: int, ends: str, *, now: int, actor: str) -> Grant:
    """Have a grant end with a month. Ending it again then changes nothing.

    Raises RateCardError, UnknownGrantError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as above
        grant = next((g for g in read_grants(connection) if g.id == number), None)
        if grant is None:
            raise UnknownGrantError(f"There is no grant {number}.")
        opened = iso(opened_at(connection))[:7]
        last = ends or max(iso(now)[:7], opened)
        if last < max(opened, grant.begins):
            raise RateCardError(
                "ends", f"The first month with which it can end is {max(opened, grant.begins)}."
            )
        return _end(connection, grant, last, now, actor)


def end_credits(ledger: Ledger, tenant: str, *, now: int, actor: str) -> None:
    """A tenant is gone: what is left of its grants expires with this month. Raises LedgerUnavailableError."""
    month = iso(now)[:7]
    with ledger.read() as connection:
        if not _left(read_grants(connection, tenant), month):
            return
    with ledger.write() as connection:
        next_batch(connection)  # as above
        for grant in _left(read_grants(connection, tenant), month):
            _end(connection, grant, max(month, grant.begins), now, actor)


def _left(grants: Sequence[Grant], month: str) -> list[Grant]:
    return [g for g in grants if g.drawn < g.cents and (g.ends or "9") > max(month, g.begins)]


def _end(connection: Connection, grant: Grant, month: str, now: int, actor: str) -> Grant:
    if grant.ends == month:
        return grant
    connection.execute(update(credit_grants).where(credit_grants.c.id == grant.id).values(ends=month))
    seal(connection, "credit", grant.id)
    grant = replace(grant, ends=month)
    record(connection, actor, "credit.end", grant.tenant, grant.document(), now)
    return grant


def store_draws(connection: Connection, month: str, statements: Iterable[Mapping[str, Any]]) -> None:
    """In the write transaction that closes a month: what its statements have drawn."""
    rows = [
        {"month": month, "grant_id": part["grant"], "cents": part["cents"]}
        for statement in statements
        for part in statement.get("credits", {}).get("draws", ())
    ]
    if rows:
        connection.execute(insert(credit_draws), rows)
        seal(connection, "credit_draw", month)
