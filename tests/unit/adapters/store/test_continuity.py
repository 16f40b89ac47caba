"""What is a loss and what a change, without any server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.registry.mass_removal import WINDOW_SECONDS, MassRemovalWatch
from adapters.store.continuity import Position, differences, loss, mark_after, next_epoch, same

KNOWN = Position("us", epoch=1, seq=10, mark="aa")


@pytest.mark.parametrize(
    ("known", "found", "at", "words"),
    [
        (Position(), Position(), None, ""),
        (Position(), Position("them", 3, 50, "zz"), None, ""),  # nothing is known: nothing can be lost
        (KNOWN, KNOWN, "aa", ""),
        (KNOWN, replace(KNOWN, seq=12, mark="cc"), "aa", ""),
        (KNOWN, replace(KNOWN, seq=900, mark="cc"), None, ""),  # away for long: the feed was trimmed
        (KNOWN, replace(KNOWN, seq=12, mark=""), "", ""),  # an older Florin has written it
        (KNOWN, Position(), None, "empty"),
        (KNOWN, Position(seq=12, mark="aa"), "aa", "empty"),
        (KNOWN, replace(KNOWN, installation="them", seq=12), "aa", "another installation"),
        (KNOWN, replace(KNOWN, installation="them", epoch=2, seq=12), "aa", "another installation"),
        (KNOWN, replace(KNOWN, seq=9), None, "its last one is number 9"),
        (KNOWN, replace(KNOWN, mark="bb"), "bb", "change 10 differs from the one"),
        (KNOWN, replace(KNOWN, seq=12, mark="cc"), "bb", "change 10 differs from the one"),
        (KNOWN, replace(KNOWN, epoch=0, seq=12), "aa", "before the last restore or accept"),
        (KNOWN, replace(KNOWN, epoch=2, seq=3), None, ""),  # an operator has decided
        (KNOWN, Position("them", 2, 3, "bb", ("us",)), None, ""),
    ],
)
def test_a_loss_is_told_from_a_change(known: Position, found: Position, at: str | None, words: str):
    said = loss(known, found, at)
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.parametrize(
    "found", [Position(), Position("them", 7, 40, "xx"), replace(KNOWN, seq=4), replace(KNOWN, epoch=0)]
)
def test_a_decision_is_taken_over_by_all_who_were_there(found: Position, restore: bool):
    begun = next_epoch(KNOWN, found, restore=restore)
    assert loss(KNOWN, begun, None) == ""
    assert loss(found, begun, None) == ""
    assert begun.installation == ("us" if restore or not found.installation else found.installation)
    assert begun.seq > max(KNOWN.seq, found.seq) + 1  # a gap, by which followers notice


def test_a_mark_tells_histories_apart():
    one = mark_after("", "tenant", "a", "{}")
    assert len(one) == 16
    others = {
        mark_after(one, "tenant", "a", "{}"),
        mark_after("", "tenant", "a", None),
        mark_after("", "tenant", "a", "-"),
        mark_after("", "tenant", "b", "{}"),
        mark_after("", "key", "a", "{}"),
    }
    assert len(others | {one}) == 6


def test_what_passes_by_itself_is_no_difference():
    known = {"tenant": {"a": "1", "b": "1"}, "placement": {"e/v": "x"}, "death": {"e/w": "y"}}
    assert same(known, {"tenant": {"a": "1", "b": "1"}, "key": {}})
    assert not same(known, {"tenant": {"a": "1"}})
    (told,) = differences(known, {"tenant": {"b": "2", "c": "1"}}).items()
    assert (told[0], told[1].missing, told[1].changed, told[1].added) == ("tenant", ("a",), ("b",), ("c",))


def told(*samples: tuple[float, int]) -> list[str]:
    """What is said at each time, with so many there."""
    there = {"tenants": 0}
    shrinkage, said = MassRemovalWatch(lambda: there), []
    for now, count in samples:
        there["tenants"] = count
        said.append(shrinkage.check(now))
    return said


def test_a_registry_shrinks_when_much_goes_at_once():
    *few, much, later = told((0, 40), (60, 36), (61, 30), (62 + WINDOW_SECONDS, 30))
    assert few == ["", ""]
    assert "10 of 40 tenants" in much
    assert later == ""  # as it is now
    assert told((0, 4), (1, 0)) == ["", ""]


def test_a_slow_decline_is_no_alarm():
    assert not any(told(*((n * 10, 1000 - n) for n in range(500))))
