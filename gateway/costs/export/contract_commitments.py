"""The Contract Commitment dataset of FOCUS 1.4, which has all columns of that of 1.3: a row for each recorded
commitment whose term touches the month. `ContractApplied` in the infrastructure dataset refers to them.

A commitment pays for GPUs hour by hour, used or not: its benefit is that they are there. What it saves
depends on what is used of it, and on list prices; `florin commitment report` says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from sqlalchemy import Connection

from gateway.costs.commitments.commitment import Commitment
from gateway.costs.commitments.commitment_store import read_commitments
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.columns import Column
from gateway.costs.export.files import Order
from gateway.costs.export.row_facts import GPU_HOURS, commitment_id, object_text
from gateway.costs.export.writers import bounded, write_csv, write_parquet
from gateway.costs.periods import iso, month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.units import DAY, FEMTO, HOUR, MICRO, NANO, half_up

_PREFIX = "ContractCommitment"
COLUMNS = (
    Column("BillingCurrency", "text"),
    Column(f"{_PREFIX}Applicability", "json"),
    Column(f"{_PREFIX}BenefitCategory", "text", values=frozenset({"Availability"})),
    Column(f"{_PREFIX}Category", "text", values=frozenset({"Usage"})),
    Column(f"{_PREFIX}Cost", "cost"),
    Column(f"{_PREFIX}Created", "time"),
    Column(f"{_PREFIX}Description", "text"),
    Column(f"{_PREFIX}DiscountPercentage", "quantity", nullable=True),
    Column(f"{_PREFIX}DurationType", "text"),
    Column(f"{_PREFIX}FulfillmentInterval", "text", values=frozenset({"Hourly"})),
    Column(f"{_PREFIX}Id", "text"),
    Column(f"{_PREFIX}LastUpdated", "time"),
    Column(
        f"{_PREFIX}LifecycleStatus", "text", values=frozenset({"Pending", "Active", "Expired", "Canceled"})
    ),
    Column(f"{_PREFIX}Model", "text", values=frozenset({"Continuous"})),
    Column(f"{_PREFIX}OfferCategory", "text", values=frozenset({"Negotiated"})),
    Column(f"{_PREFIX}PaymentInterval", "text", values=frozenset({"One-Time", "Monthly"})),
    Column(
        f"{_PREFIX}PaymentModel",
        "text",
        values=frozenset({"No Upfront", "Partial Upfront", "All Upfront"}),
    ),
    Column(f"{_PREFIX}PaymentUpfrontPercentage", "quantity"),
    Column(f"{_PREFIX}PeriodEnd", "time"),
    Column(f"{_PREFIX}PeriodStart", "time"),
    Column(f"{_PREFIX}Quantity", "quantity"),
    Column(f"{_PREFIX}Type", "text"),
    Column(f"{_PREFIX}Unit", "text", values=frozenset({GPU_HOURS})),
    Column("ContractId", "text"),
    Column("ContractPeriodEnd", "time"),
    Column("ContractPeriodStart", "time"),
    Column("InvoiceIssuerName", "text"),
    Column("ServiceProviderName", "text"),
)


def export_commitments(ledger: Ledger, order: Order, path: Path, most: int) -> int:
    """Fill the file `path`, like `gateway.costs.export.files.export`. Raises ParquetMissingError,
    LedgerUnavailableError, TooLargeError, OSError."""
    with path.open("r+b") as file, ledger.read() as connection:
        file.truncate()
        put = write_parquet if order.as_parquet else write_csv
        return put(bounded(file, most), COLUMNS, {}, rows(connection, order))


def rows(connection: Connection, order: Order) -> Iterator[Row]:
    within = month_of(order.month)
    for commitment in read_commitments(connection):
        if commitment.valid_from < within.end and commitment.valid_to > within.start:
            yield {
                **_terms(commitment),
                **_payment(commitment),
                f"{_PREFIX}LifecycleStatus": _status(commitment, order.now),
                "InvoiceIssuerName": order.issuer,
                "ServiceProviderName": order.issuer,
            }


def _terms(commitment: Commitment) -> Row:
    start, end = iso(commitment.valid_from), iso(commitment.valid_to)
    name = commitment_id(commitment.id)
    gpus = f"{commitment.gpus} x {commitment.gpu_type}"
    return {
        "BillingCurrency": commitment.currency,
        f"{_PREFIX}Applicability": _applicability(commitment),
        f"{_PREFIX}BenefitCategory": "Availability",
        f"{_PREFIX}Category": "Usage",
        f"{_PREFIX}Created": _second(commitment.recorded_at),
        f"{_PREFIX}Description": f"{commitment.description}, {gpus}" if commitment.description else gpus,
        f"{_PREFIX}DurationType": _duration(commitment.valid_from, commitment.valid_to),
        f"{_PREFIX}FulfillmentInterval": "Hourly",
        f"{_PREFIX}Id": name,
        f"{_PREFIX}LastUpdated": _second(commitment.withdrawn_at or commitment.recorded_at),
        f"{_PREFIX}Model": "Continuous",
        f"{_PREFIX}OfferCategory": "Negotiated",
        f"{_PREFIX}PeriodEnd": end,
        f"{_PREFIX}PeriodStart": start,
        f"{_PREFIX}Type": "Reserved Capacity",
        f"{_PREFIX}Unit": GPU_HOURS,
        "ContractId": name,
        "ContractPeriodEnd": end,
        "ContractPeriodStart": start,
    }


def _second(time: int) -> str:
    """FOCUS's times have no fractions of a second."""
    return iso(time - time % MICRO)


def _payment(commitment: Commitment) -> Row:
    """Over the term: all GPU-hours, at the rate, and what is paid upfront."""
    nano = (commitment.valid_to - commitment.valid_from) * commitment.gpus * NANO // HOUR
    upfront = int(Fraction(commitment.upfront) * FEMTO)
    cost = nano * commitment.rate_micros + upfront
    if not upfront:
        model, share = "No Upfront", 0
    elif cost == upfront:
        model, share = "All Upfront", NANO
    else:  # neither 0 nor 1, whatever it is rounded to
        model, share = "Partial Upfront", min(max(half_up(upfront * NANO, cost), 1), NANO - 1)
    return {
        f"{_PREFIX}Cost": Fixed(cost, 15),
        f"{_PREFIX}PaymentInterval": "One-Time" if model == "All Upfront" else "Monthly",
        f"{_PREFIX}PaymentModel": model,
        f"{_PREFIX}PaymentUpfrontPercentage": Fixed(share, 9),
        f"{_PREFIX}Quantity": Fixed(nano, 9),
    }


def _applicability(commitment: Commitment) -> str:
    """Which rows of the infrastructure dataset it can cover."""
    dimensions = {
        "PricingCategory": "Committed",
        "x_GpuType": commitment.gpu_type,
        "RegionId": commitment.region,
    }
    rules = [
        {"Dimension": name, "Operator": "In", "Values": [value]}
        for name, value in dimensions.items()
        if value
    ]
    return object_text(InclusionOperator="And", Inclusions=rules)


def _status(commitment: Commitment, now: int) -> str:
    if commitment.withdrawn_at is not None:
        return "Canceled"
    if now < commitment.valid_from:
        return "Pending"
    return "Active" if now < commitment.valid_to else "Expired"


def _duration(start: int, end: int) -> str:
    """In the largest unit of which it is a whole number, by the calendar."""
    months = _whole_months(start, end)
    if months:
        return _of(months // 12, "Year") if months % 12 == 0 else _of(months, "Month")
    days, rest = divmod(end - start, DAY)
    return _of(max((end - start) // HOUR, 1), "Hour") if rest else _of(days, "Day")


def _of(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _whole_months(start: int, end: int) -> int:
    """0 if it is not from a day and time of a month to the same of another."""
    (year, month), (last_year, last_month) = ([int(n) for n in iso(t)[:7].split("-")] for t in (start, end))
    return 12 * (last_year - year) + last_month - month if iso(start)[7:] == iso(end)[7:] else 0
