"""Views of open and closed months, for operators and for tenants.

Returns plain data, because the functions run in the ledger process.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, delete, exists, func, select

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.closing import GRACE, close
from gateway.costs.closing.coverage import cover_of, record_page
from gateway.costs.closing.preview import preview, settlement_now
from gateway.costs.closing.requests import read_request
from gateway.costs.credits.store import first_open_credit
from gateway.costs.manual_lines.store import first_open_line
from gateway.costs.merkle import RECORD_FIELDS, STORED_FIELDS, present
from gateway.costs.periods import complete_hours, iso, month_of
from gateway.costs.proofs.proof import prove
from gateway.costs.reconciliation.acceptances import read_acceptances
from gateway.costs.reconciliation.bill_section import bill_findings, bill_section
from gateway.costs.reconciliation.reconcile import TOLERANCE
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.verify import NotClosedError, read_stored, verify
from gateway.metering.ledger.database import LedgerUnavailableError, insert
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import bill_lines, period_tenants, periods, rollups, snapshots
from gateway.metering.ledger.sealed_months import MonthChangedError, changed_months

ALIVE_SECONDS = 15
"""A closing that has reported no progress for this long is considered dead."""
_ROLL_SECONDS = 3.0
_SUMMARY = (
    "tenant", "records", "seal", "nano_gpu_hours", "allocated_nano_gpu_hours", "cost", "amount_cents",
    "charged_cents",
)  # fmt: skip  # one name a line says no more
_OF_TENANT = ("tenant", "records", "seal", "amount_cents")
"""What a tenant sees of its own: what it is charged."""


def overview(ledger: Ledger, now: int, tenant: str | None = None) -> list[dict[str, Any]]:
    """All months with usage, oldest first. `tenant`: limits the result to what it may see.

    Raises LedgerUnavailableError."""
    with suppress(MonthChangedError):
        roll(ledger, now, patience=_ROLL_SECONDS)
    with ledger.read() as connection:
        rows = connection.execute(select(periods).order_by(periods.c.month)).mappings().all()
        months = [_period(connection, row, now, tenant) for row in rows]
        latest = rows[-1]["month"] if rows else ""
        months += [_open(name, now, tenant) for name in _open_months(connection, latest, now)]
        changed = {name: _changed(name, now, tenant) for name in changed_months(connection)}
    by_name = {month["month"]: month for month in months} | changed
    return [by_name[name] for name in sorted(by_name)]


def one(ledger: Ledger, month: str, now: int, tenant: str | None = None) -> dict[str, Any]:
    """One month with the sums of its statements: all, or one tenant's. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        if month in changed_months(connection):
            return {**_changed(month, now, tenant), "statements": []}
        row = connection.execute(select(periods).where(periods.c.month == month)).mappings().one_or_none()
        if row is None:
            request = read_request(connection, month) if tenant is None else None
            return {**_open(month, now, tenant), **(request or {}), "statements": []}
        query = select(period_tenants.c.document).where(period_tenants.c.month == month)
        if tenant is not None:
            query = query.where(period_tenants.c.tenant == tenant)
        documents = connection.execute(query.order_by(period_tenants.c.tenant)).scalars()
        shown = _SUMMARY if tenant is None else _OF_TENANT
        statements = [_sums(document, shown) for document in map(json.loads, documents)]
        return {**_period(connection, row, now, tenant), "statements": statements}


def _sums(statement: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """`amount_cents` is what it costs, `charged_cents` what the customer is charged."""
    charges = statement.get("charges")
    # `root` is its name in what the seal covers, which never changes.
    sums = {
        name: statement[stored_as]
        for name in names
        if (stored_as := "root" if name == "seal" else name) in statement
    }
    charged = statement["amount_cents"] if charges is None else charges["amount_cents"]
    charged += sum(line["amount_cents"] for line in statement.get("manual", ()))
    charged -= statement.get("credits", {}).get("drawn_cents", 0)
    if "charged_cents" in names:
        return {**sums, "charged_cents": charged, "rate_card": None if charges is None else charges["card"]}
    return {**sums, "amount_cents": charged}


def previewed(ledger: Ledger, month: str, now: int, policy: AllocationPolicy | None) -> dict[str, Any]:
    """What closing the month now would bill; see `preview`. `unaccepted`: what of its bill nobody has
    accepted. It keeps no month from being closed, but whoever closes it should know.

    Raises LedgerUnavailableError."""
    roll(ledger, now, patience=_ROLL_SECONDS)
    with ledger.read() as connection:
        unaccepted = _unaccepted(connection, month, now)
        return {**preview(connection, month, now=now, policy=policy), "unaccepted": unaccepted}


def _unaccepted(connection: Connection, month: str, now: int) -> list[str]:
    """A sentence for what is identified and not accepted beyond the tolerance, or if there is no bill of the
    month. Nothing where bills are not imported at all."""
    if connection.execute(select(bill_lines.c.id).limit(1)).first() is None:
        return []
    within = complete_hours(month, now)
    return bill_findings(
        bill_section(connection, month, within, read_acceptances(connection, month)), month, TOLERANCE
    )


def _open_months(connection: Connection, latest: str, now: int) -> list[str]:
    """Months with postings after the latest closed one."""
    query = select(func.min(rollups.c.posted)).where(rollups.c.posted > latest)
    with_line = {first_open_line(connection, latest), first_open_credit(connection, latest)} - {None}
    name = min(filter(None, [connection.execute(query).scalar_one_or_none(), *with_line]), default=None)
    names = []
    while name is not None and month_of(name).start <= now:
        posted = connection.execute(select(exists().where(rollups.c.posted == name))).scalar()
        if posted or name in with_line:
            names.append(name)
        name = iso(month_of(name).end)[:7]
    return names


def _changed(month: str, now: int, tenant: str | None) -> dict[str, Any]:
    """A month that is not as it was recorded: nothing of its row is believed."""
    return {**_open(month, now, tenant), "state": "changed", "can_be_closed": False}


def _open(month: str, now: int, tenant: str | None) -> dict[str, Any]:
    period = month_of(month)
    document: dict[str, Any] = {
        "month": month,
        "state": "open",
        "from": iso(period.start),
        "to": iso(period.end),
    }
    return document if tenant is not None else {**document, "can_be_closed": now >= period.end + GRACE}


def _period(connection: Connection, row: RowMapping, now: int, tenant: str | None) -> dict[str, Any]:
    shown = {
        **_open(row["month"], now, "-"),
        "state": row["state"],
        "closed_at": None if row["closed_at"] is None else iso(row["closed_at"]),
        "seal": row["root"],
        "previous_seal": row["previous_root"],
        "currency": row["currency"],
    }
    if tenant is not None:
        return shown
    document = json.loads(row["document"])
    summary = document.get("summary", {})
    return {
        **shown,
        "closed_by": row["closed_by"],
        "policy": row["policy"],
        "shares": document["terms"]["shares"],
        "own": document["terms"].get("own", {}),
        "records": row["records"],
        "tenants": summary.get("tenants"),
        "missing_prices": [" ".join(filter(None, series)) for series in document["terms"]["missing_prices"]],
        "totals": summary.get("totals"),
        "charged_cents": _charged(connection, row) if row["state"] == "closed" else None,
        "progress": _progress(connection, row["month"], now) if row["state"] == "closing" else None,
    }


_charged_cents: dict[str, int] = {}
"""By seal: what all tenants of a closed month are charged. Grows by the closed months that are shown."""


def _charged(connection: Connection, row: RowMapping) -> int | None:
    """None while a month is not as it was recorded."""
    if row["root"] not in _charged_cents:
        try:
            settled = settlement_now(connection, row["month"]).settlement
        except MonthChangedError:
            return None
        _charged_cents[row["root"]] = sum(s.price_cents for s in settled.statements.values())
    return _charged_cents[row["root"]]


def _progress(connection: Connection, month: str, now: int) -> dict[str, Any] | None:
    row = connection.execute(select(snapshots).where(snapshots.c.name == _name(month))).one_or_none()
    if row is None or now - row.at > ALIVE_SECONDS * 1_000_000:
        return None
    document: dict[str, Any] = json.loads(row.document)
    return document


def progress_of(ledger: Ledger, month: str, now: int) -> dict[str, Any] | None:
    """Progress of a closing on any worker. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return _progress(connection, month, now)


def close_watched(ledger: Ledger, /, month: str, **terms: Any) -> bool:
    """Run `close`, publishing its progress once a second. Returns whether the month was already closed."""
    last = 0.0

    def say(doing: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < 1:
            return
        last = time.monotonic()
        row = {"name": _name(month), "at": time.time_ns() // 1000}
        row["document"] = json.dumps({"doing": doing, "done": done, "of": total})
        try:
            with ledger.write() as connection:
                put = insert(connection, snapshots).values(row)
                connection.execute(put.on_conflict_do_update(index_elements=["name"], set_=row))
        except LedgerUnavailableError:
            return  # if it lasts, the closing itself fails

    try:
        return bool(close(ledger, month, progress=say, **terms)["already"])
    finally:
        with ledger.write() as connection:
            connection.execute(delete(snapshots).where(snapshots.c.name == _name(month)))


def _name(month: str) -> str:
    return f"closing {month}"


def verified(ledger: Ledger, month: str, now: int, *, quick: bool = False) -> dict[str, Any]:
    """Verify a closed month; `quick`: without its records. Rolls up first, because hours that await a
    correction cannot be compared.

    Raises NotClosedError, LedgerUnavailableError."""
    roll(ledger, now)
    return verify(ledger, month, quick=quick)[0].document()


def proof_of(ledger: Ledger, month: str, tenant: str) -> dict[str, Any]:
    """Raises NotClosedError, also if the tenant has no statement, and LedgerUnavailableError."""
    try:
        with ledger.read() as connection:
            stored = read_stored(connection, month)
        return prove(stored.header, stored.row["root"], list(stored.statements.values()), tenant)
    except (KeyError, NotClosedError):
        raise NotClosedError(no_statement(month, tenant)) from None


def no_statement(month: str, tenant: str) -> str:
    return f"{tenant} has no statement in {month}, or {month} is not closed."


def covered_page(
    ledger: Ledger,
    month: str,
    tenant: str | None,
    after: tuple[int, str] | None,
    limit: int,
) -> tuple[bytes, tuple[int, str] | None]:
    """A JSON array of at most `limit` records, rendered here because a thousand would block the event loop,
    and the position of the last if there are more. Of one tenant: as it sees them, with the fields that its
    proof covers. Raises NotClosedError, LedgerUnavailableError."""
    with ledger.read() as connection:
        cover = cover_of(connection, month)
    if cover is None:
        raise NotClosedError(f"{month} is not closed.")
    page = record_page(ledger, cover, tenant=tenant, after=after, limit=limit + 1)
    names = STORED_FIELDS if tenant is None else RECORD_FIELDS
    shown = [present(record, names) for record in page[:limit]]
    last = (shown[-1]["ended"], shown[-1]["id"]) if len(page) > limit else None
    return orjson.dumps(shown), last
