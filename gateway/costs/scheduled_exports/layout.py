"""Where scheduled exports are, and when they are due. Pure.

Like AWS's own FOCUS exports, so that what reads those reads these: `data/BILLING_PERIOD=2026-10/…` has the
rows of a month, and `metadata/BILLING_PERIOD=2026-10/…-Manifest.json` says what they are.

For CloudZero, as its S3 connections read them: `20261001-20261101/DROP/florin.csv.gz`, in a folder of its own
each time, and `20261001-20261101/manifest.json`, which names the folder that counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.costs.export.columns import Dataset, Format, Granularity
from gateway.costs.export.files import Order
from gateway.costs.periods import iso, month_of

State = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is exported, and where to. From the settings."""

    to: str
    """`s3://BUCKET/PREFIX` or `file:///DIRECTORY`, without a trailing slash."""
    every: int
    """Microseconds between two exports of a month that is not closed."""
    dataset: Dataset
    format: Format
    granularity: Granularity
    file: Literal["csv.gz", "parquet"]
    issuer: str

    @property
    def name(self) -> str:
        return f"florin-{self.dataset}-{self.format}-{self.granularity}"

    def data(self, month: str, time: int) -> str:
        """Name of a month's file that is written at a time, below `to`."""
        if self.format == "cloudzero":
            return f"{_from_to(month)}/{_drop(time)}/florin.{self.file}"
        return f"data/BILLING_PERIOD={month}/{self.name}.{self.file}"

    def object(self, month: str) -> str:
        """URI of what is there once for a month."""
        name = self.manifest(month) if self.format == "cloudzero" else self.data(month, 0)
        return f"{self.to}/{name}"

    def manifest(self, month: str) -> str:
        if self.format == "cloudzero":
            return f"{_from_to(month)}/manifest.json"
        return f"metadata/BILLING_PERIOD={month}/{self.name}-Manifest.json"

    def order(self, month: str) -> Order:
        parquet = self.file == "parquet"
        return Order(month, self.format, self.dataset, self.issuer, parquet, granularity=self.granularity)


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was exported."""

    object: str
    month: str
    state: State
    digest: str
    rows: int
    size: int
    """Bytes."""
    written_at: int
    checked_at: int

    def manifest(self, schedule: Schedule) -> str:
        if schedule.format == "cloudzero":
            drop = {"version": "1.3.0", "current_drop_id": _drop(self.written_at)}
            return json.dumps(drop, indent=2) + "\n"
        document: dict[str, Any] = {
            "billing_period": self.month,
            "state": self.state,
            "dataset": schedule.dataset,
            "granularity": schedule.granularity,
            "format": schedule.format,
            "files": [
                {
                    "name": schedule.data(self.month, self.written_at),
                    "rows": self.rows,
                    "bytes": self.size,
                    "sha256": self.digest,
                }
            ],
            "written_at": iso(self.written_at),
        }
        return json.dumps(document, indent=2) + "\n"


def _from_to(month: str) -> str:
    """`20261001-20261101`"""
    period = month_of(month)
    return "-".join(iso(time)[:10].replace("-", "") for time in (period.start, period.end))


def _drop(time: int) -> str:
    """`20261123T080409Z`"""
    return iso(time - time % 1_000_000).replace("-", "").replace(":", "")


def due(
    months: Iterable[tuple[str, State]], written: Mapping[str, Written], now: int, every: int
) -> Iterator[tuple[str, State]]:
    """Which months to export now: those not yet exported, those closed since, and the open ones from time to
    time. `written`: by month."""
    for month, state in months:
        last = written.get(month)
        if last is None or (state != last.state) or (state == "open" and now - last.checked_at >= every):
            yield month, state
