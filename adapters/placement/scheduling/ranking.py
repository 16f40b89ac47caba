"""Items by a number that changes often, lowest first, without looking at all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Item = TypeVar("Item")
_OUT = -math.inf
"""The entry of an item that is taken."""


class Ranking(Generic[Item]):
    """A heap in which each item has an entry that is never above its number. An entry that is too low is put
    right when it comes to the top, so an item need only say when its number falls. Mutable."""

    def __init__(self, items: Sequence[Item], number: Callable[[Item], float]) -> None:
        self.items = items
        self._number = number
        self._entries = [number(item) for item in items]
        self._heap: list[tuple[float, int]] = []
        """May have older entries of an item, too: higher than the one that counts."""
        self._build()

    def __len__(self) -> int:
        return len(self.items)

    def _build(self) -> None:
        self._heap = [(entry, place) for place, entry in enumerate(self._entries) if entry != _OUT]
        heapify(self._heap)

    def fell(self, place: int) -> None:
        """The number of the item at this place of the sequence may have become lower."""
        number = self._number(self.items[place])
        if number < self._entries[place]:
            self._entries[place] = number
            heappush(self._heap, (number, place))
            if len(self._heap) > 4 * len(self.items) + 16:
                self._build()

    def take(self, below: float) -> tuple[int, Item] | None:
        """The item with the lowest number, and its place, unless that is `below` or more. It is out of the
        ranking until it is put back."""
        heap, entries = self._heap, self._entries
        while heap and heap[0][0] < below:
            entry, place = heap[0]
            if entry != entries[place]:
                heappop(heap)  # an older one
                continue
            item = self.items[place]
            number = self._number(item)
            if number > entry:
                entries[place] = number
                heapreplace(heap, (number, place))
                continue
            heappop(heap)
            entries[place] = _OUT
            return place, item
        return None

    def any(self, below: float) -> bool:
        """Whether an item's number is below this."""
        lowest = self.take(below)
        if lowest is not None:
            self.put_back((lowest[0],))
        return lowest is not None

    def put_back(self, places: Sequence[int]) -> None:
        """What was taken."""
        for place in places:
            self._entries[place] = entry = self._number(self.items[place])
            heappush(self._heap, (entry, place))
