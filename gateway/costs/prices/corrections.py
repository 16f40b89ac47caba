"""Corrections of prices: a row that supersedes another, with a reason. The earlier row is kept.

Whatever a correction no longer covers is priced as if the corrected price had never been there: an open-ended
price before it resumes. Open months change at once, closed months by correction rows in the open month.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.costs.periods import iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.jumps import check_price_jump
from gateway.costs.prices.price import Price, PriceConflictError, PriceError, as_fast, check, rate_micros
from gateway.costs.prices.price_store import insert_price, mark_stale, read_history, read_prices, said_speed
from gateway.costs.prices.repricing import opened_at
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.continuity import next_batch
from gateway.metering.ledger.ledger import Ledger


class NoPriceError(Exception):
    """No price has that number."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in the new row; None: as before."""

    reason: str
    gpu_type: str | None = None
    rate: str | None = None
    region: str | None = None
    purchase: str | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    open_ended: bool = False
    """Remove `valid_to`."""
    speedup: str | None = None
    speedup_reference: str | None = None
    speedup_source: str | None = None
    withdraw: bool = False
    """The price should not have been added at all."""


def correct_price(
    ledger: Ledger, number: int, change: Change, *, now: int, actor: str = "", confirmed: bool = True
) -> Price:
    """Supersede the price `number`. Returns the new row.

    `actor`: recorded in the audit log; empty to record nothing. `confirmed`: False refuses a likely slip,
    compared with the other prices of the series: the corrected one may have been the slip.

    Raises NoPriceError, PriceError, PriceConflictError, UnconfirmedJumpError, LedgerUnavailableError."""
    with ledger.write() as connection:
        next_batch(connection)  # as when a price is added
        old = _standing(read_history(connection), number)
        before = read_prices(connection)
        rest = [price for price in before if price.id != old.id]
        new = changed(old, change, PriceBook(rest), now)
        if not new.withdrawn:
            check(new, rest)
            if not confirmed:
                check_price_jump(new, rest)
        new = insert_price(connection, new)
        after = rest if new.withdrawn else [*rest, new]
        opened = opened_at(connection)
        mark_stale(connection, [old, new], before, after, opened)
        if new.gpu_type.lower() != old.gpu_type.lower():
            mark_stale(connection, [new, old], before, after, opened)
        record(connection, actor, "price.correct", new.gpu_type, new.document(), now)
        return new


def _standing(history: list[Price], number: int) -> Price:
    old = next((price for price in history if price.id == number), None)
    if old is None:
        raise NoPriceError(f"No price has the number {number}: florin price list shows them.")
    after = next((price for price in history if price.supersedes == number), None)
    if after is not None:
        raise PriceConflictError(
            f"Price {number} was corrected by price {after.id} on {iso(after.recorded_at)}: correct that one."
        )
    return old


def changed(old: Price, change: Change, rest: PriceBook, now: int) -> Price:
    """The row that supersedes `old`, without a number. `rest`: the book without `old`.

    Raises PriceError."""
    if not change.reason.strip():
        raise PriceError("reason", "Say why: the reason is kept with the price and in the audit log.")
    if change.valid_to is not None and change.open_ended:
        raise PriceError("valid_to", "A price either ends or is open-ended.")
    same = replace(
        old, supersedes=old.id, reason=change.reason.strip(), recorded_at=now, withdrawn=change.withdraw, id=0
    )
    if change.withdraw:
        if _figures(change):
            raise PriceError("withdraw", "A withdrawn price has no new figures: withdraw it, or correct it.")
        if old.withdrawn:
            raise PriceError("withdraw", f"Price {old.id} is itself a withdrawal.")
        return same
    new = replace(
        same,
        gpu_type=old.gpu_type if change.gpu_type is None else rest.spelling(change.gpu_type),
        rate_micros=old.rate_micros if change.rate is None else rate_micros(change.rate),
        region=old.region if change.region is None else change.region,
        purchase=change.purchase or old.purchase,
        valid_from=old.valid_from if change.valid_from is None else change.valid_from,
        valid_to=None if change.open_ended else old.valid_to if change.valid_to is None else change.valid_to,
    )
    factor, reference, source = said_speed(change.speedup, change.speedup_reference, change.speedup_source)
    if factor is not None:
        new = replace(new, speedup_millis=factor, speedup_reference=reference, speedup_source=source)
    if new.valid_to is not None and new.valid_to <= new.valid_from:
        raise PriceError("valid_to", f"{iso(new.valid_to)} is not after {iso(new.valid_from)}.")
    if not old.withdrawn and _as_before(old, new):
        raise PriceError("rate_per_gpu_hour", f"Price {old.id} already says that: nothing to correct.")
    return new


def _figures(change: Change) -> bool:
    return change != Change(change.reason, withdraw=True)


def _as_before(old: Price, new: Price) -> bool:
    figures = [(p.series, p.rate_micros, p.valid_from, p.valid_to) for p in (old, new)]
    return figures[0] == figures[1] and as_fast(old, new)
