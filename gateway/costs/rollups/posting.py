"""Turns a divided hour into roll-up rows, and two states of an hour into correction rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from gateway.costs.rollups.attribution import Piece

READ = (
    "id", "dispatched", "ended", "prompt_tokens", "cached_tokens", "completion_tokens", "adapter_loads",
    "hour_marks", "reasoning_tokens", "outcome", "billable", "tenant", "adapter", "version", "base_model",
    "task", "key_id", "end_user", "tag", "cost_centre", "service_tier",
)  # fmt: skip  # one name a line says no more
"""Columns of a usage record, in the order that `details` expects; the first eight are an
`attribution.Attempt`."""
REASONING, OUTCOME, BILLABLE, BASE_MODEL, OWNER = 8, 9, 10, 14, slice(10, 21)
_ROW = 6
"""The first fields of an owner determine the row, the others (`Names`) its part."""

FIGURES = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "nano_gpu_hours",
    "weight_input", "weight_cached", "weight_output", "weight_other",
)  # fmt: skip  # one name a line says no more

Figures = tuple[int, ...]
"""In the order of FIGURES."""


class RowKey(NamedTuple):
    """Key of a row within its engine-hour."""

    piece: int
    bucket: str
    tenant: str
    adapter: str
    version: str
    base_model: str
    region: str
    purchase: str
    calibration: int
    task: str = ""


Names = tuple[str | None, ...]
"""The names of a row's part, one for each of `parts.DIMENSIONS`; empty if there are none."""
Detail = tuple[RowKey, Names, Sequence[int]]
"""What the requests with the same row and the same names used: Figures."""
K = TypeVar("K", bound=tuple[Any, ...])
"""RowKey, or `parts.PartKey`, which begins like it."""


class RowPrice(NamedTuple):
    """Rate of a row, millionths of the currency per GPU-hour; None: look it up in the price book."""

    rate_micros: int | None
    currency: str | None


BY_BOOK = RowPrice(None, None)


@dataclass(frozen=True, slots=True)
class HourContext:
    """What the rows of an engine-hour have in common. Region and purchase model are those at its end."""

    region: str
    purchase: str
    base_model: str
    calibration: int
    earlier: Sequence[tuple[int, str, str]] = ()
    """(until, region, purchase model) that held before in the hour, ascending."""

    def terms_at(self, time: int) -> tuple[str, str]:
        """Region and purchase model."""
        for until, region, purchase in self.earlier:
            if time < until:
                return region, purchase
        return self.region, self.purchase


def details(
    pool: HourContext,
    pieces: Sequence[Piece],
    attempts: Sequence[tuple[Any, ...]],
    rejected: Sequence[tuple[Any, ...]] = (),
    continuations: Sequence[tuple[Any, ...]] = (),
) -> list[Detail]:
    """Sums by row and names. Requests and tokens count where their attempt ended, GPU time and ω where they
    were spent.

    `attempts`, followed by `continuations` (see `continued`), are in the order in which they were divided.
    These and `rejected` are tuples as in READ."""
    sums_by_row: list[Detail] = []
    owners = [a[OWNER] for a in attempts]
    continued_owners = [a[OWNER] for a in continuations]
    for piece in pieces:
        start, end = piece.start, piece.end
        sums = _spent(piece, [*owners, *continued_owners] if continuations else owners)
        _count(sums, start, end, attempts, owners)
        if continuations:  # the request counts with the attempt that began it
            _count(sums, start, end, continuations, continued_owners, each=0)
        sums_by_row += _details(pool, start, sums, ("retry_waste", "usage"))
        if rejected:
            refused: dict[tuple[Any, ...], list[int]] = {}
            _count(refused, start, end, rejected, [r[OWNER] for r in rejected])
            sums_by_row += _details(pool, start, refused, ("rejected", "rejected"))
        for bucket, nano in (
            ("headroom", piece.headroom), ("startup", piece.startup), ("idle", piece.idle),
        ):  # fmt: skip  # a row each
            if nano:
                key = RowKey(
                    start, bucket, "", "", "", pool.base_model, *pool.terms_at(start), pool.calibration
                )
                sums_by_row.append((key, (), (0, 0, 0, 0, 0, nano, 0, 0, 0, 0)))
    return sums_by_row


def rows_of(sums: Iterable[Detail]) -> dict[RowKey, Figures]:
    """Sums by row."""
    rows: dict[RowKey, Figures] = {}
    for key, _, figures in sums:
        before = rows.get(key)
        rows[key] = tuple(figures) if before is None else _plus(before, figures)
    return rows


def continued(record: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split a billable record whose outcome is in CONTINUED in two: rereading the prompt, which is retry
    waste, and the completion, which is the customer's. Both keep the hour marks; counts that a part lacks are
    taken as zero."""
    name, dispatched, ended, prompt, cached, completion, loads, marks, reasoning, outcome, _, *owner = record
    return (
        (name, dispatched, ended, prompt, cached, 0, loads, marks, 0, outcome, 0, *owner),
        (name + "+", dispatched, ended, 0, None, completion, 0, marks, reasoning, outcome, 1, *owner),
    )


_Sums = dict[tuple[Any, ...], list[int]]


def _spent(piece: Piece, owners: Sequence[tuple[Any, ...]]) -> _Sums:
    sums: _Sums = {}
    for n, nano, a, b, c, d in zip(piece.who, piece.shares, *piece.omegas, strict=True):
        figures = sums.get(owners[n])
        if figures is None:
            sums[owners[n]] = [0, 0, 0, 0, 0, nano, a, b, c, d]
            continue
        figures[5] += nano
        figures[6] += a
        figures[7] += b
        figures[8] += c
        figures[9] += d
    return sums


def _count(
    sums: _Sums,
    start: int,
    end: int,
    records: Sequence[tuple[Any, ...]],
    owners: Sequence[tuple[Any, ...]],
    each: int = 1,
) -> None:
    for record, owner in zip(records, owners, strict=True):
        if start <= record[2] < end:
            figures = sums.get(owner)
            if figures is None:
                figures = sums[owner] = [0] * len(FIGURES)
            figures[0] += each
            figures[1] += record[3]
            figures[2] += record[4] or 0
            figures[3] += record[5]
            figures[4] += record[REASONING]


def _details(pool: HourContext, piece: int, sums: _Sums, buckets: tuple[str, str]) -> Iterator[Detail]:
    """`buckets`: for what is not billable, and for what is."""
    for owner, figures in sums.items():
        if any(figures):
            billable, tenant, adapter, version, base_model, task = owner[:_ROW]
            bucket = buckets[bool(billable)]
            key = RowKey(
                piece, bucket, tenant, adapter, version, base_model, *pool.terms_at(piece), pool.calibration,
                task,
            )  # fmt: skip  # in the order of the fields
            yield key, owner[_ROW:], figures


def _plus(a: Iterable[int], b: Iterable[int]) -> Figures:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def corrections(
    standing: Iterable[tuple[K, RowPrice, Figures]],
    fresh: Mapping[K, Figures],
    price: Callable[[RowKey], RowPrice],
) -> list[tuple[K, RowPrice, Figures]]:
    """The rows that turn what was posted in closed months into `fresh`: -old at its posted price, +new by the
    price book; none for a key whose figures and price are unchanged. `price`: the price book's current
    answer. Where it no longer has one (a second series has made the choice ambiguous), the single price that
    was posted stays in force: a late record must not take back what was charged. Rows and their parts belong
    in one call, so that both get the same price."""
    posted: dict[K, dict[RowPrice, Figures]] = {}
    for key, row_price, figures in standing:
        by_price = posted.setdefault(key, {})
        by_price[row_price] = _plus(by_price[row_price], figures) if row_price in by_price else figures
    charged: dict[tuple[int, str, str], set[RowPrice]] = {}
    for key, by_price in posted.items():
        still = {
            row_price
            for row_price, figures in by_price.items()
            if row_price.rate_micros is not None and any(figures)
        }
        charged.setdefault(_priced_by(key), set()).update(still)
    changes: list[tuple[K, RowPrice, Figures]] = []
    for key in sorted({*posted, *fresh}):
        old = [(row_price, figures) for row_price, figures in posted.get(key, {}).items() if any(figures)]
        new = fresh.get(key)
        book = price(RowKey(*key[: len(RowKey._fields)]))
        if _stands(old, new, book):
            continue
        changes += [(key, row_price, tuple(-figure for figure in figures)) for row_price, figures in old]
        if new is not None:
            known = charged.get(_priced_by(key), set())
            silent = book.rate_micros is None and len(known) == 1
            changes.append((key, next(iter(known)) if silent else BY_BOOK, new))
    return changes


def _priced_by(key: tuple[Any, ...]) -> tuple[int, str, str]:
    row = RowKey(*key[: len(RowKey._fields)])
    return row.piece, row.region, row.purchase


def _stands(old: Sequence[tuple[RowPrice, Figures]], new: Figures | None, now: RowPrice) -> bool:
    if new is None:
        return not old
    if len(old) != 1:
        return False
    [(row_price, figures)] = old
    # Without a price on either side there is nothing to correct to.
    return figures == new and (row_price == now or None in (row_price.rate_micros, now.rate_micros))
