"""Compares records with roll-ups hour by hour: each tenant's requests and tokens must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from gateway.costs.periods import iso
from gateway.costs.proofs.proof import SUMS
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import rollups
from gateway.units import HOUR

_COUNTS = ("requests", *SUMS)
assert SUMS == ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_NONE = (0,) * len(_COUNTS)


class HourlyCounts:
    """Takes a month's records in order, holding one hour in memory. Mutable."""

    def __init__(self, ledger: Ledger, month: str) -> None:
        self._ledger = ledger
        self._month = month
        self._hour: int | None = None
        self._counts: dict[str, list[int]] = {}
        self._seen: set[int] = set()
        self.differences: list[str] = []

    def __repr__(self) -> str:
        return f"<HourlyCounts of {self._month}: {len(self.differences)} differences>"

    def add(self, record: Mapping[str, Any]) -> None:
        hour = record["ended"] - record["ended"] % HOUR
        if hour != self._hour:
            self._end_of_hour()
            self._hour = hour
        counts = self._counts.get(record["tenant"])
        if counts is None:
            counts = self._counts[record["tenant"]] = [0] * len(_COUNTS)
        counts[0] += 1
        counts[1] += record["prompt_tokens"]
        counts[2] += record["cached_tokens"] or 0
        counts[3] += record["completion_tokens"]
        counts[4] += record["reasoning_tokens"]

    def end(self) -> None:
        """After the last record: also compare hours that have roll-ups but no records."""
        self._end_of_hour()
        table = rollups.c
        with self._ledger.read() as connection:
            query = select(table.hour).where(table.posted == self._month).distinct()
            hours = set(connection.execute(query).scalars())
        for hour in sorted(hours - self._seen):
            self._compare(hour, {})

    def _end_of_hour(self) -> None:
        if self._hour is not None:
            self._compare(self._hour, self._counts)
            self._counts = {}

    def _compare(self, hour: int, counted: Mapping[str, list[int]]) -> None:
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
