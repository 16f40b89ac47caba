"""Each version's own order of the engines (highest random weight; Thaler and Ravishankar, 1998): every worker
computes the same without talking, and an engine that joins or leaves moves few versions."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from zlib import crc32

HOMES = 3
"""How many engines a version's first loads prefer."""
ORDERS = 16_384
"""Versions share so many orders, so that all homes of a large fleet are soon known: to compare 500 engines
takes ten times as long as the rest of a decision."""
_MIX, _MASK = 0x9E3779B1, 0xFFFFFFFF
"""Multiplied, similar names differ in the bits that decide; checksums alone gave some of 500 engines a tenth
of their share, and others twice and a half."""


class Homes:
    """Mutable: remembers the homes that were asked for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [*names]
        self._checksums = [crc32(name.encode()) for name in self._names]
        self._first: dict[int, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def first(self, version: str) -> dict[str, int]:
        """The version's homes: engine → its place in the order, from 0 to HOMES - 1."""
        number = crc32(version.encode()) % ORDERS
        homes = self._first.get(number)
        if homes is None:
            weights = self._weights(number)
            names = (self._names[weights.index(weight)] for weight in nlargest(HOMES, weights))
            homes = self._first[number] = {name: place for place, name in enumerate(names)}
        return homes

    def order(self, version: str) -> dict[str, int]:
        """Every engine → its place in the version's order, from 0."""
        weights = dict(zip(self._names, self._weights(crc32(version.encode()) % ORDERS), strict=True))
        order = sorted(weights, key=weights.__getitem__, reverse=True)
        return {name: place for place, name in enumerate(order)}

    def _weights(self, number: int) -> list[int]:
        key = number * _MIX & _MASK
        return [(checksum ^ key) * _MIX & _MASK for checksum in self._checksums]
