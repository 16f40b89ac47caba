"""Dated exchange rates, for reports in another currency than the price book's.

Append-only: a rate is valid from the start of its day (UTC) until the next of the same pair. Of several of a
day, the last recorded applies; the others are kept. Rates are decimals with at most nine places, stored as
integer billionths, so that a converted amount is an exact decimal. Nothing is inverted: the inverse of a rate
is not an exact decimal, and rarely the rate that was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, insert, select

from gateway.costs.field_error import FieldError
from gateway.costs.periods import iso
from gateway.costs.prices.jumps import check_jump
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.chain import seal
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import exchange_rates as table
from gateway.units import DAY, NANO, decimal_text, typed_units

_PLACES = 9
_LARGEST = 1_000_000


class ExchangeRateError(FieldError):
    """An invalid exchange rate, or none where one is needed. `param` names the field."""


class ExchangeRateConflictError(Exception):
    """That day has another rate."""


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of `currency` is worth `rate_nanos` billionths of `target`."""

    currency: str
    target: str
    rate_nanos: int
    valid_from: int
    """Start of a day in Unix microseconds, UTC."""
    recorded_at: int
    source: str
    reason: str | None = None
    """Why it replaces an earlier rate of that day."""
    id: int = 0

    @property
    def factor(self) -> Fraction:
        return Fraction(self.rate_nanos, NANO)

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "currency": self.currency,
            "target": self.target,
            "rate": decimal_text(self.rate_nanos, _PLACES),
            "valid_from": iso(self.valid_from),
            "recorded_at": iso(self.recorded_at),
            "source": self.source,
            "reason": self.reason,
        }


def rate_nanos(text: str) -> int:
    """Raises ExchangeRateError unless `text` is a decimal above 0 with at most nine places."""
    rate = typed_units(text, _PLACES, _LARGEST)
    if not rate:
        raise ExchangeRateError(
            "rate",
            f"{text[:40]!r} is not an exchange rate: write a decimal above 0 of at most nine places, like "
            "0.92.",
        )
    return rate


def list_exchange_rates(ledger: Ledger) -> list[ExchangeRate]:
    """All exchange rates, by pair and day; of one day, in the order in which they were recorded. Raises
    LedgerUnavailableError."""
    with ledger.read() as connection:
        return read_exchange_rates(connection)


def read_exchange_rates(connection: Connection) -> list[ExchangeRate]:
    """`list_exchange_rates` within the caller's transaction."""
    c = table.c
    rows = connection.execute(select(table).order_by(c.currency, c.target, c.valid_from, c.id)).mappings()
    return [ExchangeRate(**row) for row in rows]


def add_exchange_rate(
    ledger: Ledger,
    *,
    currency: str,
    target: str,
    rate: str,
    valid_from: int,
    source: str,
    reason: str | None,
    now: int,
    actor: str = "",
    confirmed: bool = True,
) -> tuple[ExchangeRate, bool]:
    """Add a rate. Returns it, and whether it is new. A `reason` is required if that day has another rate.

    `actor`: recorded in the audit log; empty to record nothing. `confirmed`: False refuses a likely slip.

    Raises ExchangeRateError, ExchangeRateConflictError, UnconfirmedJumpError, LedgerUnavailableError."""
    if currency == target:
        raise ExchangeRateError("target", f"{currency} to {target} needs no rate.")
    if valid_from % DAY:
        raise ExchangeRateError(
            "valid_from", f"{iso(valid_from)} is not the start of a day, like 2026-10-01."
        )
    new = ExchangeRate(currency, target, rate_nanos(rate), valid_from, now, source, reason)
    with ledger.write() as connection:
        next_batch(connection)  # one after the other
        of_pair = [r for r in read_exchange_rates(connection) if (r.currency, r.target) == (currency, target)]
        same_day = [r for r in of_pair if r.valid_from == valid_from]
        if same_day and same_day[-1].rate_nanos == new.rate_nanos:
            return same_day[-1], False
        if same_day and reason is None:
            raise ExchangeRateConflictError(
                f"{currency} to {target} is {decimal_text(same_day[-1].rate_nanos, _PLACES)} from "
                f"{iso(valid_from)[:10]} already. To replace it, say why: --reason."
            )
        neighbour = _neighbour(of_pair, valid_from)
        if not confirmed and neighbour is not None:
            check_jump(f"One {currency} in {target}", neighbour.rate_nanos, new.rate_nanos, places=_PLACES)
        row = {name: value for name, value in asdict(new).items() if name != "id"}
        key = connection.execute(insert(table).values(row)).inserted_primary_key
        assert key is not None
        new = replace(new, id=key[0])
        seal(connection, "exchange_rate", currency, target)
        record(connection, actor, "exchange_rate.add", f"{currency} to {target}", new.document(), now)
        return new, True


def _neighbour(rates: Sequence[ExchangeRate], day: int) -> ExchangeRate | None:
    """The last rate of a pair before a day, or else the first after it."""
    before = [rate for rate in rates if rate.valid_from < day]
    after = [rate for rate in rates if rate.valid_from > day]
    return before[-1] if before else after[0] if after else None


def rate_at(rates: Sequence[ExchangeRate], currency: str, target: str, time: int) -> ExchangeRate | None:
    """The rate that is valid at a time; None: none is. `rates`: as `read_exchange_rates` orders them."""
    begun = [r for r in rates if (r.currency, r.target) == (currency, target) and r.valid_from <= time]
    return max(begun, key=lambda r: (r.valid_from, r.id), default=None)


def chosen(
    rates: Sequence[ExchangeRate], currency: str, target: str, end: int, now: int, tenant: str | None = None
) -> ExchangeRate:
    """The rate at the end of a period, exclusive. Raises ExchangeRateError, which tells a tenant no command
    of the operator's."""
    time = min(end - 1, now)
    rate = rate_at(rates, currency, target, time)
    if rate is None:
        add = f"florin exchange-rate add --from {currency} --to {target} --rate … --date {iso(time)[:8]}01"
        do = f"{add} --source …" if tenant is None else f"ask your provider, or ask for {currency}."
        missing = f"No exchange rate from {currency} to {target} on {iso(time)[:10]}"
        raise ExchangeRateError("currency", f"{missing}: {do}")
    return rate
