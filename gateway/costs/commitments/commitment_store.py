"""Reads and extends the commitments in the ledger. They are never edited: a wrong one is withdrawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from gateway.costs.commitments.commitment import (
    MOST_GPUS,
    Commitment,
    CommitmentError,
    CommitmentUse,
    Usage,
    amount,
    use,
)
from gateway.costs.periods import Period, iso
from gateway.costs.prices.book import PriceError, rate_micros
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.provisioned import provisioned
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import commitments as table


class CommitmentNotFoundError(Exception):
    """No commitment has this id, or it was withdrawn."""


def read_commitments(connection: Connection) -> list[Commitment]:
    """All, also withdrawn ones, in the order in which they were added."""
    return [Commitment(*row) for row in connection.execute(select(table).order_by(table.c.id))]


def list_commitments(ledger: Ledger) -> list[dict[str, Any]]:
    """`read_commitments` as documents. Raises LedgerUnavailableError."""
    with ledger.read() as connection:
        return [commitment.document() for commitment in read_commitments(connection)]


def add_commitment(
    ledger: Ledger,
    *,
    gpu_type: str,
    region: str,
    gpus: int,
    valid_from: int,
    valid_to: int,
    rate: str,
    upfront: str,
    currency: str,
    description: str,
    now: int,
    by: str,
    actor: str = "",
) -> tuple[dict[str, Any], bool]:
    """Add a commitment. Returns it, and False if the same one existed already. `rate`: per GPU-hour, paid for
    every hour of the term. `upfront`: paid once. `actor`: recorded in the audit log; empty to record nothing.

    Raises CommitmentError, LedgerUnavailableError."""
    if valid_to <= valid_from:
        raise CommitmentError("valid_to", f"{iso(valid_to)} is not after {iso(valid_from)}.")
    if not 1 <= gpus <= MOST_GPUS:
        raise CommitmentError("gpus", f"gpus must be 1 to {MOST_GPUS:,}.")
    try:
        micros = rate_micros(rate)
    except PriceError as error:
        raise CommitmentError("rate_per_gpu_hour", str(error)) from error
    terms: dict[str, Any] = {
        "gpu_type": gpu_type, "region": region, "gpus": gpus, "valid_from": valid_from, "valid_to": valid_to,
        "rate_micros": micros, "upfront": amount("upfront", upfront), "currency": currency,
        "description": description,
    }  # fmt: skip  # one name a line says no more
    with ledger.write() as connection:
        for old in read_commitments(connection):
            if old.withdrawn_at is None and all(getattr(old, name) == value for name, value in terms.items()):
                return old.document(), False
        book = read_prices(connection)
        if book and book[0].currency != currency:
            raise CommitmentError(
                "currency", f"The price book uses {book[0].currency}; a commitment must use it as well."
            )
        values = {**terms, "recorded_at": now, "recorded_by": by}
        number = connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one()
        seal(connection, "commitment", number)
        document = Commitment(id=number, **values).document()
        record(connection, actor, "commitment.add", str(number), document, now)
    return document, True


def withdraw_commitment(
    ledger: Ledger, number: int, *, reason: str, now: int, by: str, actor: str = ""
) -> dict[str, Any]:
    """Withdraw a commitment that was recorded by mistake: it no longer counts, in any month. Returns it.

    Raises CommitmentNotFoundError, LedgerUnavailableError."""
    with ledger.write() as connection:
        matching = [commitment for commitment in read_commitments(connection) if commitment.id == number]
        if not matching:
            raise CommitmentNotFoundError(f"No commitment {number}: see florin commitment list.")
        if matching[0].withdrawn_at is not None:
            raise CommitmentNotFoundError(
                f"Commitment {number} was withdrawn already, {iso(matching[0].withdrawn_at)}."
            )
        connection.execute(
            update(table)
            .where(table.c.id == number)
            .values(withdrawn_at=now, withdrawn_by=by, withdrawn_reason=reason)
        )
        seal(connection, "commitment", number)
        record(connection, actor, "commitment.withdraw", str(number), {"reason": reason}, now)
        [withdrawn] = [commitment for commitment in read_commitments(connection) if commitment.id == number]
    return withdrawn.document()


def uses_of(connection: Connection, within: Period) -> list[CommitmentUse]:
    """What engines used of each commitment in a period of whole hours, as known now."""
    relevant = [
        commitment
        for commitment in read_commitments(connection)
        if commitment.valid_from < within.end and commitment.valid_to > within.start
    ]
    return use(relevant, reserved_usage(connection, within), within) if relevant else []


def reserved_usage(connection: Connection, within: Period) -> Usage:
    """Time provisioned by engines of purchase `reserved`."""
    return _by_region(connection, within, "reserved")


def _by_region(connection: Connection, within: Period, purchase: str) -> Mapping[Any, dict[int, int]]:
    usage: dict[tuple[str, str], dict[int, int]] = {}
    for part in provisioned(connection, within):
        if part.purchase == purchase:
            hours = usage.setdefault((part.gpu_type, part.region), {})
            hours[part.hour] = hours.get(part.hour, 0) + part.nano_gpu_hours
    return usage
