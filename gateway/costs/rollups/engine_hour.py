"""One engine-hour, computed from the ledger: written by the roll-up, compared by the verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Text, bindparam, select, type_coerce

from gateway.costs.prices.book import NOT_SAID, PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.attribution import BRIDGED, HourInput, Piece, divide
from gateway.costs.rollups.parts import PartKey, parts_of
from gateway.costs.rollups.plausibility import check_figures, check_place, check_records
from gateway.costs.rollups.posting import (
    BASE_MODEL,
    BILLABLE,
    OUTCOME,
    READ,
    Detail,
    Figures,
    HourContext,
    RowKey,
    continued,
    details,
    rows_of,
)
from gateway.costs.rollups.posting import FIGURES as FIGURE_NAMES
from gateway.costs.rollups.token_weights import UNCALIBRATED, Weights
from gateway.metering.ledger.engine_hours import EngineHour as Place
from gateway.metering.ledger.record_rows import engine_hour_records
from gateway.metering.ledger.schema import calibrations, engine_spans, usage
from gateway.metering.records import CONTINUED, Outcome
from gateway.units import HOUR

PLACE = ("hour", "engine", "gpu_type", "gpu_count")
"""Columns of a `Place`."""
AT = (
    bindparam("at_hour", type_=BigInteger),
    bindparam("at_engine", type_=Text),
    bindparam("at_gpu_type", type_=Text),
    bindparam("at_gpu_count", type_=BigInteger),
)
"""Parameters of prebuilt statements: building one takes longer than executing it."""
_RECORD = tuple(
    type_coerce(usage.c[name], Integer).label(name) if name == "billable" else usage.c[name] for name in READ
)
"""`billable` as an integer: converting it to a bool takes as long as the rest of the row."""
_RECORDS = engine_hour_records(AT, *_RECORD)  # type: ignore[arg-type]  # stand for an EngineHour
_SPAN = engine_spans.c
_SPANS = select(
    _SPAN.started, _SPAN.seen, _SPAN.worker, _SPAN.phase, _SPAN.region, _SPAN.purchase, _SPAN.base_model
).where(
    _SPAN.engine == AT[1],
    _SPAN.gpu_type == AT[2],
    _SPAN.gpu_count == AT[3],
    _SPAN.started < AT[0] + (HOUR + BRIDGED),
    _SPAN.seen > AT[0] - BRIDGED,
)
"""Includes spans near the hour's ends, since a gap across an end may have to be bridged."""


_WHOLE = ("provisioned_us", "nano_gpu_hours")


def at(place: Place) -> dict[str, Any]:
    """Values of the parameters AT."""
    return {f"at_{name}": value for name, value in zip(PLACE, place, strict=True)}


@dataclass(frozen=True, slots=True)
class ComputedHour:
    place: Place
    totals: dict[str, Any]
    """The row of engine_hours."""
    rows: dict[RowKey, Figures]
    """Rows of rollups."""
    parts: dict[PartKey, Figures]
    """Rows of rollup_parts."""
    details: Sequence[Detail] = ()
    """What both are sums of."""

    def postings(self) -> Iterator[tuple[RowKey | PartKey, Figures]]:
        """Rows and parts."""
        yield from self.rows.items()
        yield from self.parts.items()


class HourTerms:
    """Prices and calibrations, read once per transaction when first needed. Mutable: caches them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def book(self) -> PriceBook:
        return PriceBook(read_prices(self._connection))

    @cached_property
    def _calibrations(self) -> list[Any]:
        table = calibrations.c
        names = (table.id, table.prefill_ps, table.cached_ps, table.decode_ps, table.kv_ps, table.load_ps)
        query = select(table.gpu_type, table.base_model, table.valid_from, *names).order_by(table.valid_from)
        return list(self._connection.execute(query))

    def weights(self, gpu_type: str, base_model: str, hour: int) -> Weights:
        """The weights of the latest calibration that is valid in an hour."""
        for row in reversed(self._calibrations):
            if (row.gpu_type, row.base_model) == (gpu_type, base_model) and row.valid_from <= hour:
                return Weights(*row[3:])
        return UNCALIBRATED


@dataclass(frozen=True, slots=True)
class DividedHour:
    """An engine-hour as its attempts share it."""

    attempts: Sequence[tuple[Any, ...]]
    """As in READ."""
    continuations: Sequence[tuple[Any, ...]]
    """The second parts of continued ones. In the pieces, they follow the attempts."""
    rejected: Sequence[tuple[Any, ...]]
    pieces: Sequence[Piece]
    context: HourContext


def divided_hour(
    connection: Connection, terms: HourTerms, place: Place, cuts: Iterable[int] = ()
) -> DividedHour:
    """From the records, spans, weights and prices of an engine-hour. `cuts`: where it is cut, even if
    its price does not change there. Raises ImplausibleError."""
    hour, _, gpu_type, gpu_count = place
    check_place(hour, gpu_count)
    attempts: list[Any] = []
    rejected: list[Any] = []
    continuations: list[Any] = []
    for record in connection.execute(_RECORDS, at(place)).all():
        outcome = record[OUTCOME]
        if outcome in CONTINUED and record[BILLABLE]:
            reread, rest = continued(record)
            attempts.append(reread)
            continuations.append(rest)
        else:
            (rejected if outcome == Outcome.REJECTED else attempts).append(record)
    for records in (attempts, rejected, continuations):
        check_records(records)
    spans = connection.execute(_SPANS, at(place)).all()
    region, purchase, base_model = _terms_of(hour, spans, (*attempts, *rejected))
    earlier = _earlier_terms(hour, spans)
    weights = terms.weights(gpu_type, base_model, hour)
    context = HourContext(region, purchase, base_model, weights.id, earlier)
    pieces = divide(
        HourInput(
            hour,
            gpu_count,
            up=[(s.started, s.seen) for s in spans if s.phase == "up"],
            startup=[(s.started, s.seen) for s in spans if s.phase != "up"],
            cuts=sorted({*_cuts(terms.book, gpu_type, hour, context), *cuts}),
            weights=weights,
        ),
        [*attempts, *continuations],
    )
    return DividedHour(attempts, continuations, rejected, pieces, context)


def compute(connection: Connection, terms: HourTerms, place: Place, cuts: Iterable[int] = ()) -> ComputedHour:
    """The rows of an engine-hour, divided as `divided_hour` says. Raises ImplausibleError."""
    hour = divided_hour(connection, terms, place, cuts)
    pieces, pool = hour.pieces, hour.context
    totals = {
        **dict(zip(PLACE, place, strict=True)),
        "region": pool.region,
        "purchase": pool.purchase,
        "base_model": pool.base_model,
        "provisioned_us": sum(p.provisioned_us for p in pieces),
        "startup_us": sum(p.startup_us for p in pieces),
        "busy_us": sum(p.busy_us for p in pieces),
        "nano_gpu_hours": sum(p.total for p in pieces),
        "records": len(hour.attempts) + len(hour.rejected),
        "calibration": pool.calibration,
    }
    sums = details(pool, pieces, hour.attempts, hour.rejected, hour.continuations)
    rows = rows_of(sums)
    for figures in rows.values():  # and so for the parts of each: no figure is negative
        check_figures(FIGURE_NAMES, figures)
    check_figures(_WHOLE, (totals[name] for name in _WHOLE))
    return ComputedHour(place, totals, rows, parts_of(sums), sums)


def _terms_of(hour: int, spans: Iterable[Any], records: Sequence[Any]) -> tuple[str, str, str]:
    """Region, purchase model and base model of an engine at the end of an hour: those of the latest span in
    it or, if there is none, of the records."""
    inside = _inside(hour, spans)
    if inside:
        last = inside[-1]
        return last.region, last.purchase, last.base_model
    return *NOT_SAID, min((r[BASE_MODEL] for r in records), default="")


def _earlier_terms(hour: int, spans: Iterable[Any]) -> list[tuple[int, str, str]]:
    """As in HourContext: terms hold from when they were first seen, the first ones from the hour's start."""
    return [
        (after.started, before.region, before.purchase)
        for before, after in pairwise(_inside(hour, spans))
        if (before.region, before.purchase) != (after.region, after.purchase) and after.started > hour
    ]


def _inside(hour: int, spans: Iterable[Any]) -> list[Any]:
    """The spans in an hour, in order of time."""
    inside = (s for s in spans if s.started < hour + HOUR and s.seen >= hour)
    return sorted(inside, key=lambda s: (s.started, s.seen, s.worker, s.phase))


def _cuts(book: PriceBook, gpu_type: str, hour: int, context: HourContext) -> Iterator[int]:
    """The times within an hour at which its terms or their rate change."""
    start = hour
    for until, region, purchase in (*context.earlier, (hour + HOUR, context.region, context.purchase)):
        yield from book.changes(gpu_type, region, purchase, start, until)
        start = until
    yield from (until for until, _, _ in context.earlier)
