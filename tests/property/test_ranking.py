"""Whatever has changed meanwhile, a ranking gives the lowest first, each once, and of equals the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.scheduling.ranking import Ranking
from tests.support.search import examples

numbers = st.lists(st.integers(0, 9), min_size=1, max_size=6)
changes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 11)), max_size=60)


@examples(200)
@given(numbers, changes)
def test_the_lowest_come_first(items: list[int], later: list[tuple[int, int, int]]):
    """Each change: an item gets another number, and then all below a limit are taken and put back."""
    ranking = Ranking(range(len(items)), items.__getitem__)
    for any_place, number, limit in later:
        place = any_place % len(items)
        falls, items[place] = number < items[place], number
        if falls:
            ranking.fell(place)
        taken = []
        while (lowest := ranking.take(limit)) is not None:
            taken.append(lowest[0])
            ranking.fell(lowest[0])  # as when a look at it shows something
        assert taken == sorted((p for p, n in enumerate(items) if n < limit), key=lambda p: (items[p], p))
        ranking.put_back(taken)
        assert len(ranking._heap) <= 4 * len(items) + 17
