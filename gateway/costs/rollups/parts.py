"""Parts: roll-up rows divided once more, by whose requests they are within a tenant. Pure.

A request has a name in each of DIMENSIONS: the id of its API key, the labels that it came with (see
`gateway.dataplane.labels`), and its service tier. Each dimension divides the row on its own, so that the
parts do not multiply. Only named parts are stored: what they leave of their row has the empty name, and
whoever reads them computes it (see `part_sources`). So the parts always sum to the row.

Clients choose names. A tenant has at most MOST_NAMES of them per dimension and engine-hour, those with the
most GPU time, then the most requests, then the smallest; the others together are OTHER. A function of the
records alone, so that recomputing an hour gives the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.costs.rollups.posting import FIGURES, Detail, Figures, RowKey
from gateway.dataplane.labels import OTHER

DIMENSIONS = ("key", "end_user", "tag", "cost_centre", "service_tier")
"""In the order of `posting.Names`."""
MOST_NAMES = 100
_GPU_TIME, _REQUESTS = FIGURES.index("nano_gpu_hours"), FIGURES.index("requests")


class PartKey(NamedTuple):
    """Key of a part within its engine-hour: that of its row, and whose it is."""

    piece: int
    bucket: str
    tenant: str
    adapter: str
    version: str
    base_model: str
    region: str
    purchase: str
    calibration: int
    task: str
    dimension: str
    name: str


def parts_of(details: Sequence[Detail]) -> dict[PartKey, Figures]:
    """The named parts of an engine-hour. `details`: all of the hour's."""
    parts: dict[PartKey, Figures] = {}
    for index, dimension in enumerate(DIMENSIONS):
        named = [(row, name, figures) for row, names, figures in details if names and (name := names[index])]
        kept = _kept((row.tenant, name, figures) for row, name, figures in named)
        sums: dict[tuple[RowKey, str], Sequence[int]] = {}
        for row, name, figures in named:
            part = row, name if (row.tenant, name) in kept else OTHER
            before = sums.get(part)
            sums[part] = figures if before is None else [a + b for a, b in zip(before, figures, strict=True)]
        for (row, name), figures in sums.items():
            parts[PartKey(*row, dimension, name)] = tuple(figures)
    return parts


def _kept(named: Iterable[tuple[str, str, Sequence[int]]]) -> set[tuple[str, str]]:
    """The names that stay, with their tenants."""
    uses: dict[str, dict[str, tuple[int, int]]] = {}
    for tenant, name, figures in named:
        own = uses.setdefault(tenant, {})
        nano, requests = own.get(name, (0, 0))
        own[name] = (nano + figures[_GPU_TIME], requests + figures[_REQUESTS])
    kept = set()
    for tenant, own in uses.items():
        order = sorted(own, key=lambda name: (-own[name][0], -own[name][1], name))
        kept |= {(tenant, name) for name in order[:MOST_NAMES]}
    return kept
