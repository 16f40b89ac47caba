"""What workers tell each other about their requests on engines, several times a second.

Reports are small, because every worker reads those of all others: which adapters are in flight is told as a
set of bits, in which the adapters of several workers can be counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from zlib import crc32

import orjson

_BITS = 512


@lru_cache(maxsize=1 << 16)
def bit_of(version: str) -> int:
    """The bit that stands for a version in `Load.versions`."""
    return 1 << crc32(version.encode()) % _BITS


@dataclass(frozen=True, slots=True)
class Load:
    """Requests on one engine, of one worker or of several together."""

    in_flight: int = 0
    pending: int = 0
    """Prompt tokens of those whose answers have not started."""
    versions: int = 0
    """The bits of the versions in flight. Few versions share a bit: 64 have about 60."""

    def __add__(self, other: Load) -> Load:
        in_flight, pending = self.in_flight + other.in_flight, self.pending + other.pending
        return Load(in_flight, pending, self.versions | other.versions)

    def distinct(self, besides: int) -> int:
        """Versions in flight that are not among the bits `besides`."""
        return (self.versions & ~besides).bit_count()


Loads = Mapping[str, Load]
"""Engine → load; engines without requests may be missing."""
NONE: Loads = {}


@dataclass(frozen=True, slots=True)
class Heard:
    """What the other workers report."""

    loads: Loads = field(default_factory=dict)
    """All of theirs together."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Worker → its note, whatever it is: JSON that only workers understand."""


def together(reports: Iterable[Loads]) -> dict[str, Load]:
    return _sums((e, load.in_flight, load.pending, load.versions) for r in reports for e, load in r.items())


def _sums(loads: Iterable[tuple[str, int, int, int]]) -> dict[str, Load]:
    """By engine. Ten workers on 500 engines are 5,000 loads every 100 ms, so no object is made for each."""
    sums: dict[str, list[int]] = {}
    for engine, in_flight, pending, versions in loads:
        total = sums.get(engine)
        if total is None:
            sums[engine] = [in_flight, pending, versions]
        else:
            total[0] += in_flight
            total[1] += pending
            total[2] |= versions
    return {engine: Load(*total) for engine, total in sums.items()}


def dump_report(loads: Loads, note: Any) -> str:
    """One worker's report; empty if it has nothing to say."""
    if not loads and note is None:
        return ""
    fields = {engine: (e.in_flight, e.pending, f"{e.versions:x}") for engine, e in loads.items()}
    return orjson.dumps((fields, note)).decode()


def read_reports(texts: Mapping[str, str]) -> Heard:
    """`texts`: by worker."""
    reports = {worker: orjson.loads(text) for worker, text in texts.items()}
    loads = (
        (engine, in_flight, pending, int(versions, 16))
        for fields, _ in reports.values()
        for engine, (in_flight, pending, versions) in fields.items()
    )
    return Heard(_sums(loads), {w: note for w, (_, note) in reports.items() if note is not None})
