"""Pages of events, in an order behind which nothing can appear later.

Usage: one event for each attempt that a tenant pays for, in order of the transaction that brought its record
into the ledger. Transactions commit in that order, so a cursor never passes over a late record; ids are those
of the records, so an event that is sent twice is the same event.

Cost: one event for each tenant and adapter of a closed month, which never changes. Charges: one for each line
of each statement of it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, and_, select, tuple_

from gateway.costs.export.cells import Cell, Fixed
from gateway.costs.periods import iso, month_of
from gateway.costs.reports.report import Question, read_report
from gateway.costs.statement.charge_rows import COLUMNS, month_charges
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import periods
from gateway.metering.ledger.schema import usage as table
from gateway.metering.records import CONTINUED, task_of

USAGE: Final = "florin.usage"
COST: Final = "florin.cost"
CHARGE: Final = "florin.charge"
_NAMESPACE: Final = uuid.UUID("3c1f0f0e-3f5c-5d1b-8a2e-0e1d6f6a7c55")
_COLUMNS = (
    "id", "batch", "request_id", "tenant", "key_id", "adapter", "version", "base_model", "ended",
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "outcome", "usage_source",
    "billable", "end_user", "tag", "cost_centre", "service_tier", "task",
)  # fmt: skip  # one name a line says no more

Position = tuple[int, str]
"""(batch, id) of a record."""


class NotClosedError(Exception):
    """The month is not closed: its costs can still change."""


def usage_events(
    ledger: Ledger, *, source: str, after: Position | None, since: int, limit: int
) -> tuple[list[dict[str, Any]], Position | None, bool]:
    """Events of the next `limit` records, without those that nobody pays for and those that ended before
    `since` (Unix microseconds); the position to go on from; and whether there is more. The position stays
    None while the ledger is empty. Raises LedgerUnavailableError."""
    c = table.c
    where = [] if after is None else [tuple_(c.batch, c.id) > after]
    query = select(*(c[name] for name in _COLUMNS)).where(and_(True, *where)).order_by(c.batch, c.id)
    with ledger.read() as connection:
        rows = connection.execute(query.limit(limit + 1)).mappings().all()
    shown = rows[:limit]
    position = (shown[-1]["batch"], shown[-1]["id"]) if shown else after
    events = [usage_event(row, source) for row in shown if row["billable"] and row["ended"] >= since]
    return events, position, len(rows) > limit


def usage_event(row: Mapping[Any, Any], source: str) -> dict[str, Any]:
    """A CloudEvent. `input_tokens` include `cached_input_tokens`. The prompt of a stream that was continued
    on another engine was billed with its first part. `end_user`, `tag`, `cost_centre` and `service_tier`
    (`batch`) are null where there is none. `task`: `generate`, `embed` or `score`."""
    anew = row["outcome"] not in CONTINUED
    return _event(
        id=row["id"],
        source=source,
        type=USAGE,
        subject=row["tenant"],
        time=iso(row["ended"]),
        data={
            "request_id": row["request_id"],
            "key": row["key_id"],
            "end_user": row["end_user"],
            "tag": row["tag"],
            "cost_centre": row["cost_centre"],
            "service_tier": row["service_tier"] or None,
            "task": task_of(row["task"]),
            "adapter": row["adapter"],
            "version": row["version"],
            "base_model": row["base_model"],
            "requests": 1,
            "input_tokens": row["prompt_tokens"] * anew,
            "cached_input_tokens": (row["cached_tokens"] or 0) * anew,
            "output_tokens": row["completion_tokens"],
            "reasoning_tokens": row["reasoning_tokens"],
            "counts": row["usage_source"],
        },
    )


def cost_events(ledger: Ledger, name: str, *, source: str) -> list[dict[str, Any]]:
    """CloudEvents of a closed month. Raises NotClosedError, PeriodError, LedgerUnavailableError."""
    period = month_of(name)
    with ledger.read() as connection:
        _check_closed(connection, name)
        report = read_report(connection, Question(period, ("tenant", "adapter")))
    return list(_cost_events(report, name, source, iso(period.end)))


def charge_events(ledger: Ledger, name: str, *, source: str) -> list[dict[str, Any]]:
    """CloudEvents of what tenants are charged for a closed month, without tax, which may be added later.

    Raises NotClosedError, PeriodError, LedgerUnavailableError."""
    period = month_of(name)
    with ledger.read() as connection:
        _check_closed(connection, name)
        rows = [row for row in month_charges(connection, name) if row["line"] != "tax"]
    lines: Counter[Cell] = Counter()
    events = []
    for row in rows:
        tenant = str(row["tenant"])
        lines[tenant] += 1
        events.append(
            _event(
                id=str(uuid.uuid5(_NAMESPACE, f"{name}\n{tenant}\n\ncharge {lines[tenant]}")),
                source=source,
                type=CHARGE,
                subject=tenant,
                time=iso(period.end),
                data={
                    column.name: str(cell) if isinstance(cell := row.get(column.name), Fixed) else cell
                    for column in COLUMNS
                    if column.name not in {"tenant", "state", "invoice"}
                },
            )
        )
    return events


def _check_closed(connection: Connection, name: str) -> None:
    state = connection.execute(select(periods.c.state).where(periods.c.month == name)).scalar()
    if state != "closed":
        raise NotClosedError(f"{name} is not closed: its costs can still change. Close it first.")


def _cost_events(report: Mapping[str, Any], name: str, source: str, time: str) -> Iterator[dict[str, Any]]:
    for row in report["rows"]:
        tenant, adapter = row["tenant"], row["adapter"]
        yield _event(
            id=str(uuid.uuid5(_NAMESPACE, f"{name}\n{tenant}\n{adapter}")),
            source=source,
            type=COST,
            subject=tenant,
            time=time,
            data={
                "month": name,
                "adapter": adapter,
                "currency": report["currency"],
                "cost": row["cost"],
                "unused_time_cost": row.get("allocated_cost", "0.00"),
                "requests": row["requests"],
                "input_tokens": row["prompt_tokens"],
                "cached_input_tokens": row["cached_tokens"],
                "output_tokens": row["completion_tokens"],
            },
        )


def _event(**attributes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", **attributes, "datacontenttype": "application/json"}
