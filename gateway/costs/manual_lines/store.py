"""Reads and extends the manual lines in the ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from gateway.costs.manual_lines.lines import Lines, ManualLine, MonthLine, last_day, month_lines
from gateway.costs.periods import instant, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.prices.repricing import opened_at
from gateway.costs.selling.cards import RateCardConflictError, RateCardError
from gateway.costs.selling.smallest_unit import require_whole
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import manual_lines, periods, rollups
from gateway.units import DAY, Cents, step_of

_COLUMNS = tuple(f.name for f in fields(ManualLine))


class UnknownLineError(Exception):
    """There is no manual line of that id."""


class SecondPersonError(Exception):
    """Who requests something cannot approve it."""


def read_manual_lines(connection: Connection, tenant: str | None = None) -> list[ManualLine]:
    """In the order in which they were requested."""
    query = select(*(manual_lines.c[name] for name in _COLUMNS)).order_by(manual_lines.c.id)
    if tenant is not None:
        query = query.where(manual_lines.c.tenant == tenant)
    return [ManualLine(*row) for row in connection.execute(query)]


def list_manual_lines(ledger: Ledger, tenant: str | None) -> list[ManualLine]:
    """Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_manual_lines(connection, tenant)


def lines_of(connection: Connection, month: str) -> Lines:
    """By tenant: as they were when the month was cut off, or as they are."""
    document = connection.execute(select(periods.c.document).where(periods.c.month == month)).scalar()
    if document is None:
        return _lines_now(connection, month)
    return lines_from(json.loads(document).get("terms", {}).get("manual_lines", {}))


def lines_from(terms: dict[str, list[dict[str, Any]]]) -> Lines:
    return {tenant: tuple(MonthLine(**line) for line in own) for tenant, own in terms.items()}


def lines_to_keep(connection: Connection, month: str) -> dict[str, list[dict[str, Any]]]:
    """For the terms of a month that is cut off."""
    return {tenant: [asdict(line) for line in own] for tenant, own in _lines_now(connection, month).items()}


def _lines_now(connection: Connection, month: str) -> Lines:
    currency = PriceBook(read_prices(connection)).currency
    return month_lines(read_manual_lines(connection), month, step_of(currency))


def first_open_line(connection: Connection, after: str) -> str | None:
    """The first month after another that has single lines."""
    table = manual_lines.c
    query = select(func.min(table.month)).where(table.month > after, table.withdrawn_at.is_(None))
    month: str | None = connection.execute(query).scalar()
    return month


def request_line(ledger: Ledger, new: ManualLine, *, approved: bool, actor: str) -> tuple[ManualLine, bool]:
    """Record a line. Returns it, and False if the same is pending or not on a final statement yet.
    `approved`: no second person has to approve it.

    Raises RateCardError, RateCardConflictError, UnknownLineError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # so that a month is closed either before or after
        opened = iso(opened_at(connection))[:10]
        known = read_manual_lines(connection)
        if new.kind == "end":
            new = _ending(known, new)
        same = [line for line in known if line.terms == new.terms and line.withdrawn_at is None]
        if same and (same[-1].pending or not same[-1].month or same[-1].month >= opened[:7]):
            return same[-1], False
        for param, day in (("begins", new.begins), ("ends", new.ends and _day_after(new.ends))):
            if day and day < opened:
                raise RateCardError(param, f"Months before {opened[:7]} are closed, and stay as they are.")
        require_whole(connection, new.cents)
        if approved:
            new = _approved(connection, new, new.requested_at, actor)
        new = _insert(connection, new)
        record(connection, actor, "manual_line.add", new.tenant, new.document(), new.requested_at)
        return new, True


def approve_line(ledger: Ledger, number: int, *, now: int, actor: str) -> ManualLine:
    """Another person than who requested it. Approving it again changes nothing.

    Raises UnknownLineError, SecondPersonError, RateCardConflictError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as above
        line = _line(read_manual_lines(connection), number)
        if line.counts:
            return line
        if line.withdrawn_at is not None:
            raise RateCardConflictError(f"Line {number} was withdrawn: request it again.")
        if line.requested_by == actor:
            raise SecondPersonError(f"You requested line {number}: another person has to approve it.")
        line = _approved(connection, line, now, actor)
        _write(connection, line)
        record(connection, actor, "manual_line.approve", line.tenant, line.document(), now)
        return line


def withdraw_line(ledger: Ledger, number: int, *, now: int, actor: str) -> ManualLine:
    """Only while it waits for approval. Raises UnknownLineError, RateCardConflictError,
    LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as above
        line = _line(read_manual_lines(connection), number)
        if line.counts:
            undo = "end the fee" if line.kind == "fee" else "add its opposite, a credit for a charge"
            raise RateCardConflictError(f"Line {number} was approved and stays: {undo}.")
        if line.withdrawn_at is None:
            line = replace(line, withdrawn_at=now, withdrawn_by=actor)
            _write(connection, line)
            record(connection, actor, "manual_line.withdraw", line.tenant, line.document(), now)
        return line


def end_fees(ledger: Ledger, tenant: str, *, now: int, actor: str, adapter: str | None = None) -> None:
    """A tenant, or one of its adapters, is gone: end its fees today. Raises LedgerUnavailableError."""
    today = iso(now)[:10]
    with ledger.read() as connection:
        if not _running(read_manual_lines(connection, tenant), today):
            return
    with ledger.write() as connection:
        next_batch(connection)  # as above
        for fee in _running(read_manual_lines(connection, tenant), today):
            if adapter in {None, fee.adapter}:
                end = _insert(connection, _end(fee, max(today, fee.begins), "Removed", now, actor))
                record(connection, actor, "manual_line.add", tenant, end.document(), now)


def _running(lines: Sequence[ManualLine], today: str) -> list[ManualLine]:
    """Fees that go on after today, also pending ones."""
    return [
        line
        for line in lines
        if line.kind == "fee" and line.withdrawn_at is None and (last_day(line, lines) or "9") > today
    ]


def _end(fee: ManualLine, day: str, reason: str, now: int, actor: str) -> ManualLine:
    return ManualLine(
        0, "end", fee.tenant, fee.adapter, Cents(0), reason, "", day, prorated=fee.prorated, fee=fee.id,
        month="", requested_at=now, requested_by=actor, approved_at=now, approved_by=actor,
    )  # fmt: skip  # one name a line says no more


def _ending(known: Sequence[ManualLine], new: ManualLine) -> ManualLine:
    """The end of a fee, with what it has of the fee."""
    fee = _line(known, new.fee or 0)
    if fee.kind != "fee":
        raise RateCardConflictError(f"Line {fee.id} is no fee: it ends by itself.")
    if new.ends < fee.begins:
        raise RateCardError("ends", f"Fee {fee.id} begins on {fee.begins}.")
    return replace(new, tenant=fee.tenant, adapter=fee.adapter, prorated=fee.prorated)


def _approved(connection: Connection, line: ManualLine, now: int, actor: str) -> ManualLine:
    single = line.kind not in {"fee", "end"}
    month = _next_statement(connection, now) if single else ""
    return replace(line, approved_at=now, approved_by=actor, month=month)


def _next_statement(connection: Connection, now: int) -> str:
    """The first open month that will be closed: with usage, or the present one."""
    opened = iso(opened_at(connection))[:7]
    query = select(func.min(rollups.c.posted)).where(rollups.c.posted >= opened)
    used = connection.execute(query).scalar()
    return min(used or "9", max(iso(now)[:7], opened))


def _line(lines: Sequence[ManualLine], number: int) -> ManualLine:
    line = next((line for line in lines if line.id == number), None)
    if line is None:
        raise UnknownLineError(f"There is no manual line {number}.")
    return line


def _insert(connection: Connection, line: ManualLine) -> ManualLine:
    """The line with its number."""
    row = {name: value for name, value in asdict(line).items() if name != "id"}
    key = connection.execute(insert(manual_lines).values(row)).inserted_primary_key
    assert key is not None
    seal(connection, "manual_line", key[0])
    return replace(line, id=key[0])


def _write(connection: Connection, line: ManualLine) -> None:
    names = ("month", "approved_at", "approved_by", "withdrawn_at", "withdrawn_by")
    changed = update(manual_lines).where(manual_lines.c.id == line.id)
    connection.execute(changed.values({name: getattr(line, name) for name in names}))
    seal(connection, "manual_line", line.id)


def _day_after(day: str) -> str:
    return iso(instant("ends", day) + DAY)[:10]
