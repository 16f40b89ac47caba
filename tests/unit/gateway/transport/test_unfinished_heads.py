"""Who goes when unfinished heads take too much memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.unfinished_heads import UnfinishedHeads


@dataclass(eq=False)
class Connection:
    network: str
    refused: list[str] = field(default_factory=list)

    def refuse_head(self) -> None:
        self.refused.append(self.network)


def connections(*networks: str) -> list[Connection]:
    return [Connection(network) for network in networks]


def noted(heads: UnfinishedHeads, sizes: dict[Connection, int]) -> list[Connection]:
    for connection, size in sizes.items():
        heads.note(connection, connection.network, size)
    return [connection for connection in sizes if connection.refused]


def test_who_holds_most_goes_first_and_the_rest_stays():
    small, large, largest, last = connections("a", "b", "b", "a")
    assert noted(UnfinishedHeads(100, 100), {small: 20, large: 30, largest: 35, last: 16}) == [largest]


def test_a_network_has_less_than_the_worker_and_harms_no_other():
    first, other, second = connections("a", "b", "a")
    assert noted(UnfinishedHeads(100, 40), {first: 20, other: 39, second: 21}) == [second]


def test_what_has_arrived_or_grown_is_not_counted_twice():
    heads = UnfinishedHeads(100, 100)
    growing, finished, other = connections("a", "a", "b")
    assert not noted(heads, {growing: 10, finished: 50})
    heads.finish(finished)
    heads.finish(finished)
    assert not noted(heads, {growing: 49, other: 50})
    heads.finish(growing)
    heads.finish(other)
    assert repr(heads) == "<UnfinishedHeads 0, 0 bytes>"
    assert not heads._by_network


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.booleans()), max_size=60))
def test_no_more_is_held_than_there_is_room_for(steps: list[tuple[int, int, bool]]):
    heads = UnfinishedHeads(100, 50)
    every = connections(*"aaaabbbccd")
    for number, size, ends in steps:
        if ends:
            heads.finish(every[number])
        else:
            heads.note(every[number], every[number].network, size)
        assert sum(size for _, size in heads._held.values()) == heads._total <= 100
        assert all(size <= 50 for size in heads._by_network.values())
