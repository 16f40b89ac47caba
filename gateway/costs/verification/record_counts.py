"""Compares records with roll-ups hour by hour: each tenant's requests and tokens must agree."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import func, select

from gateway.costs.closing.period_hash import Counts
from gateway.costs.periods import iso
from gateway.costs.proofs.proof import SUMS
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rollups

_COUNTS = ("requests", *SUMS)
_NONE = (0,) * len(_COUNTS)


class HourlyCounts:
    """Takes a month's hours. Mutable."""

    def __init__(self, ledger: Ledger, month: str) -> None:
        self._ledger = ledger
        self._month = month
        self._seen: set[int] = set()
        self.differences: list[str] = []

    def __repr__(self) -> str:
        return f"<HourlyCounts of {self._month}: {len(self.differences)} differences>"

    def end(self) -> None:
        """After the last hour: also compare those that have roll-ups but no records."""
        table = rollups.c
        with self._ledger.read() as connection:
            query = select(table.hour).where(table.posted == self._month).distinct()
            hours = set(connection.execute(query).scalars())
        for hour in sorted(hours - self._seen):
            self.compare(hour, {})

    def compare(self, hour: int, counted: Counts) -> None:
        self._seen.add(hour)
        posted = self._posted(hour)
        for tenant in sorted(counted.keys() | posted.keys()):
            mine, theirs = tuple(counted.get(tenant, _NONE)), posted.get(tenant, _NONE)
            if mine != theirs:
                self.differences.append(f"{tenant} at {iso(hour)}: {', '.join(_differing(mine, theirs))}")

    def _posted(self, hour: int) -> dict[str, tuple[int, ...]]:
        table = rollups.c
        sums = (func.sum(table[name]) for name in _COUNTS)
        query = select(table.tenant, *sums).where(table.posted == self._month, table.hour == hour)
        with self._ledger.read() as connection:
            rows = connection.execute(query.group_by(table.tenant)).all()
        return {row[0]: tuple(int(n) for n in row[1:]) for row in rows if any(row[1:])}


def _differing(mine: tuple[int, ...], theirs: tuple[int, ...]) -> Iterator[str]:
    for name, a, b in zip(_COUNTS, mine, theirs, strict=True):
        if a != b:
            yield f"{name} {a:,} in records, {b:,} in roll-ups"
