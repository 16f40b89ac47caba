"""Recomputes a closed period from the ledger and compares it with what was recorded.

The checks are independent, so that a difference is named: closing, root, chain, roll-ups, prices, rates,
balance, cost, residency, statements, cents, records, counts, attribution. Which months are closed is not
only what `periods` says, but also what was written to the ledger's chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from adapters.wording import counted
from gateway.costs.closing.coverage import Coverage, late_hours, rollups_digest
from gateway.costs.closing.period_hash import (
    Progress,
    TenantSums,
    previous_root,
    settlement_of,
    sums_of_records,
)
from gateway.costs.merkle import digest, header_hash
from gateway.costs.periods import iso, month_of
from gateway.costs.proofs.proof import SUMS, ProofCheck, in_order, tenants_root
from gateway.costs.rollups.balance import imbalances
from gateway.costs.rollups.daily_sums import differing_sums
from gateway.costs.verification.pricing_checks import changed_prices, cost_check, wrong_rates
from gateway.costs.verification.recomputation import recompute_hours
from gateway.costs.verification.record_counts import HourlyCounts
from gateway.costs.verification.residency_check import dedicated_check, residency_check
from gateway.metering.ledger.chain import PRUNED, is_as_sealed
from gateway.metering.ledger.engine_hours import pruned_before
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import period_tenants, periods
from gateway.units import amount_text, gpu_hours_text

_SHOWN = 3
"""Most differences to list."""
_NOT_QUICK = "Not checked: the quick verification reads no records."
_COLUMNS = ("policy", "currency", "records", "first_batch", "cutoff_batch")
"""Columns of `periods` that the summary repeats."""


class NotClosedError(Exception):
    """The month is not closed."""


@dataclass(frozen=True, slots=True)
class VerifiedPeriod:
    month: str
    seal: str
    checks: tuple[ProofCheck, ...]

    @property
    def ok(self) -> bool:
        """No check failed; a check that could not run does not count as failed."""
        return all(check.ok is not False for check in self.checks)

    def document(self) -> dict[str, Any]:
        checks = [asdict(check) for check in self.checks]
        return {"month": self.month, "seal": self.seal, "ok": self.ok, "checks": checks}


@dataclass(frozen=True, slots=True)
class StoredPeriod:
    """A closed period as stored in the ledger."""

    cover: Coverage
    row: RowMapping
    terms: dict[str, Any]
    header: dict[str, Any]
    summary: dict[str, Any]
    tenants: tuple[RowMapping, ...]
    """Rows of period_tenants."""
    statements: dict[str, dict[str, Any]]


def read_stored(connection: Connection, month: str) -> StoredPeriod:
    """Raises NotClosedError."""
    row = connection.execute(select(periods).where(periods.c.month == month)).mappings().one_or_none()
    if row is None or row["state"] != "closed":
        if is_as_sealed(connection, "month", month):
            raise NotClosedError(f"{month} is not closed.")
        raise NotClosedError(f"{month} was closed, and is not as it was recorded: see florin cost verify.")
    document = json.loads(row["document"])
    query = select(period_tenants).where(period_tenants.c.month == month).order_by(period_tenants.c.tenant)
    tenants = tuple(connection.execute(query).mappings())
    return StoredPeriod(
        cover=Coverage(month, row["first_batch"], row["cutoff_batch"]),
        row=row,
        terms=document["terms"],
        header=document["header"],
        summary=document["summary"],
        tenants=tenants,
        statements={tenant["tenant"]: json.loads(tenant["document"]) for tenant in tenants},
    )


def verify(
    ledger: Ledger, month: str | None = None, progress: Progress = lambda *_: None, *, quick: bool = False
) -> list[VerifiedPeriod]:
    """Verify one closed month, or all of them in order. Reads each record once; `quick`: none, so that the
    checks that need them are not made, and the time does not depend on their number.

    Raises PeriodError, NotClosedError, LedgerUnavailableError."""
    if month is not None:
        month_of(month)
        return [_verify(ledger, month, progress, quick=quick)]
    with ledger.read() as connection:
        query = select(periods.c.month).where(periods.c.state == "closed").order_by(periods.c.month)
        closed = list(connection.execute(query).scalars())
    return [_verify(ledger, name, progress, quick=quick) for name in closed]


def _verify(ledger: Ledger, month: str, progress: Progress, *, quick: bool) -> VerifiedPeriod:
    with ledger.read() as connection:
        stored = read_stored(connection, month)
        progress("sums", 0, 0)
        checks = [
            _closing(connection, stored),
            _root(stored),
            _chain(connection, stored),
            _rollups(connection, stored),
            _said(
                "prices",
                changed_prices(connection, stored.terms["prices"]),
                "The price book still contains them.",
            ),
            _said(
                "rates",
                wrong_rates(connection, month, stored.terms["prices"]),
                "Every row has the price book's rate.",
            ),
            _said(
                "balance", imbalances(connection, month), "The parts of each engine-hour sum to its whole."
            ),
            _cost(connection, stored),
            _residency(connection, stored),
            *_dedicated(connection, stored),
            _statements(connection, stored),
            _cents(stored),
        ]
        pruned = _pruned(connection, month)
        if not is_as_sealed(connection, "retention", PRUNED):
            wrong = "No run of the retention recorded that raw records were pruned."
            checks.append(ProofCheck("retention", ok=False, detail=wrong))
            pruned = None
    if quick:
        checks += [ProofCheck(name, None, _NOT_QUICK) for name in ("records", "counts", "attribution")]
    elif pruned is not None:
        checks.append(ProofCheck("records", None, f"Not checked: raw records before {pruned} were pruned."))
    else:
        checks += _records(ledger, stored, progress)
        checks.append(_attribution(ledger, month, progress))
    return VerifiedPeriod(month, stored.row["root"], tuple(checks))


def _said(name: str, wrong: Sequence[object], right: str) -> ProofCheck:
    if not wrong:
        return ProofCheck(name, ok=True, detail=right)
    more = f"; and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
    return ProofCheck(name, ok=False, detail="; ".join(map(str, wrong[:_SHOWN])) + more)


def _pruned(connection: Connection, month: str) -> str | None:
    """Before when raw records were pruned, if that affects this period."""
    before = pruned_before(connection)
    first = min([month_of(month).start, *late_hours(connection, month)])
    return iso(before) if before > first else None


def _closing(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    row = stored.row
    if not is_as_sealed(connection, "month", stored.cover.month):
        wrong = f"by {row['closed_by']} at {iso(row['closed_at'] or 0)}: not as it was recorded"
        return ProofCheck("closing", ok=False, detail=wrong)
    return ProofCheck("closing", ok=True, detail=f"by {row['closed_by']} at {iso(row['closed_at'])}")


def _root(stored: StoredPeriod) -> ProofCheck:
    """The seal (`root`, where it is stored) is that of the header, and the header matches what is stored."""
    header = stored.header
    computed = {
        "month": stored.cover.month,
        "previous_root": stored.row["previous_root"],
        "tenants_root": tenants_root(stored.statements.values()),
        "prices": digest(stored.terms["prices"]),
        "summary": digest(stored.summary),
        "statements": digest(in_order(stored.statements.values())),
    }
    wrong = [
        f"{name} is {computed[name]}, recorded as {header[name]}"
        for name in computed
        if computed[name] != header[name]
    ]
    if (root := header_hash(header).hex()) != stored.row["root"]:
        wrong.insert(0, f"the stored seal is {stored.row['root']}, the header's {root}")
    stored_terms = {
        **{name: stored.row[name] for name in _COLUMNS},
        "shares": json.loads(stored.row["policy_shares"]),
    }
    terms = {name: value for name, value in stored.terms.items() if name != "prices"}
    for values in (stored_terms, terms):
        wrong += [
            f"{n} is {v}, recorded as {stored.summary[n]}"
            for n, v in values.items()
            if v != stored.summary[n]
        ]
    return _said("seal", wrong, stored.row["root"])


def _chain(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    before = previous_root(connection, stored.cover.month)
    recorded = stored.header["previous_root"]
    if before != recorded:
        wrong = f"the seal of the period before is {before}; this period records {recorded}"
        return ProofCheck("chain", ok=False, detail=wrong)
    return ProofCheck("chain", ok=True, detail=f"follows {before}" if before else "This is the first period.")


def _rollups(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    computed = rollups_digest(connection, stored.cover.month)
    if computed != stored.header["rollups"]:
        wrong = f"a row of the month was changed, added or removed: digest {computed}"
        return ProofCheck("roll-ups", ok=False, detail=wrong)
    if differing := differing_sums(connection, stored.cover.month):
        sums = counted(
            differing,
            "sum of days, which reports read, is not that of the rows",
            "sums of days, which reports read, are not those of the rows",
        )
        return ProofCheck("roll-ups", ok=False, detail=sums)
    return ProofCheck("roll-ups", ok=True, detail="The month's roll-up rows match their hash.")


def _cost(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    wrong, nano, cost = cost_check(connection, stored.cover.month)
    return _said(
        "cost",
        wrong,
        f"{gpu_hours_text(nano)} GPU-hours at their rates cost {amount_text(cost)}, "
        "including later corrections.",
    )


def _residency(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    month, terms = stored.cover.month, stored.terms.get("residency")
    if terms is None:
        return ProofCheck("residency", None, "Not checked: the month was closed before residency was sealed.")
    wrong, summed = residency_check(connection, month, terms, stored.row["closing_at"])
    return _said("residency", wrong, f"{summed} adapter-hours match the samples of the engines' slots.")


def _dedicated(connection: Connection, stored: StoredPeriod) -> Iterator[ProofCheck]:
    month, terms = stored.cover.month, stored.terms.get("dedicated")
    checked = dedicated_check(connection, month, terms, stored.row["closing_at"])
    if checked is not None:
        wrong, summed = checked
        yield _said("dedicated", wrong, f"{summed} dedicated GPU-hours match the sightings of engines.")


def _statements(connection: Connection, stored: StoredPeriod) -> ProofCheck:
    """Recomputed from the roll-ups; their record counts and roots are checked against the records."""
    users = [tenant for tenant, statement in stored.statements.items() if statement["records"]]
    settled = settlement_of(connection, stored.cover.month, stored.terms, users)
    wrong = []
    for tenant in sorted(settled.statements.keys() | stored.statements.keys()):
        recorded = stored.statements.get(tenant)
        if recorded is None:
            wrong.append(f"{tenant} has no statement")
        elif tenant not in settled.statements:
            wrong.append(f"{tenant} has a statement, but nothing to pay")
        else:
            figures = settled.statements[tenant].document()
            names = [name for name, value in figures.items() if recorded.get(name) != value]
            wrong += [
                f"{tenant}: {name} {_short(recorded.get(name))}, computed {_short(figures[name])}"
                for name in names
            ]
    if settled.totals.document() != stored.summary["totals"]:
        wrong.append("the totals differ from the sum of the roll-ups")
    wrong += [
        f"{tenant['tenant']}: the row differs from the statement"
        for tenant in stored.tenants
        if any(tenant[n] != stored.statements[tenant["tenant"]][n] for n in ("tenant", "records", "root"))
    ]
    return _said(
        "statements",
        wrong,
        f"{counted(len(stored.statements), 'statement matches', 'statements match')} the roll-ups.",
    )


def _short(value: Any) -> str:
    return f"of {len(value)} lines" if isinstance(value, list) else str(value)


def _cents(stored: StoredPeriod) -> ProofCheck:
    totals = stored.summary["totals"]
    wrong = []
    for tenant, statement in stored.statements.items():
        lines = sum(line["amount_cents"] or 0 for line in statement["lines"])
        if lines != statement["amount_cents"]:
            wrong.append(
                f"{tenant}: the lines sum to {lines}, the statement says {statement['amount_cents']}"
            )
    billed = sum(s["amount_cents"] for s in stored.statements.values())
    if billed != totals["billed"]["amount_cents"]:
        wrong.append(f"the statements sum to {billed}, not to {totals['billed']['amount_cents']}")
    parts = sum(totals[name]["amount_cents"] for name in ("billed", "retry_waste", "unallocated"))
    if parts != totals["amount_cents"]:
        wrong.append(f"billed, retries and unallocated sum to {parts}, not to {totals['amount_cents']}")
    return _said("cents", wrong, f"Statements and unbilled costs sum to {totals['amount_cents']} cents.")


def _attribution(ledger: Ledger, month: str, progress: Progress) -> ProofCheck:
    divided = recompute_hours(ledger, month, progress)
    if divided.differences or not divided.skipped:
        right = f"Recomputing {counted(divided.compared, 'engine-hour')} gives the same rows."
        return _said("attribution", divided.differences, right)
    waiting = counted(divided.skipped, "engine-hour awaits", "engine-hours await")
    return ProofCheck("attribution", None, f"Not checked: {waiting} correction; the others agree.")


def _records(ledger: Ledger, stored: StoredPeriod, progress: Progress) -> list[ProofCheck]:
    hourly = HourlyCounts(ledger, stored.cover.month)
    summed = sums_of_records(ledger, stored.cover, progress, hourly.compare)
    computed = {tenant: sums.document() for tenant, sums in summed.items()}
    hourly.end()
    nothing = TenantSums().document()
    wrong = []
    for tenant in sorted(computed.keys() | stored.statements.keys()):
        now, recorded = computed.get(tenant, nothing), stored.statements.get(tenant, nothing)
        names = [name for name in ("records", *SUMS) if now[name] != recorded[name]]
        if names or any(now[name] != recorded[name] for name in now if name in {"root", "withheld"}):
            what = ", ".join(f"{name} {now[name]:,}, recorded {recorded[name]:,}" for name in names)
            wrong.append(f"{tenant}: {what or 'a record was changed'}")
    count = sum(document["records"] for document in computed.values())
    return [
        _said(
            "records",
            wrong,
            f"{counted(count, 'record hashes', 'records hash')} to the seals of "
            f"{counted(len(computed), 'tenant')}.",
        ),
        _said(
            "counts", hourly.differences, "Requests and tokens of records and roll-ups agree for every hour."
        ),
    ]
