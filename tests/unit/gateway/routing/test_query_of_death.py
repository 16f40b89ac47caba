"""Who is suspected after which deaths, for how long, and what clears them."""

from __future__ import annotations

import pytest

from gateway.routing import query_of_death as module
from gateway.routing.query_of_death import (
    FORGET,
    FRESH,
    LONGEST_REFUSAL,
    SAME_DEATH,
    WINDOW,
    SuspectRequest,
    Suspects,
)
from tests.unit.gateway.routing.conftest import Clock

EVIL, GOOD = ("evil", "evil/a"), ("good", "good/a")
MINUTE = 60.0


class SuspectsHarness:
    def __init__(self) -> None:
        self.clock = Clock()
        self.suspects = Suspects(self.clock)
        self.deaths = 0

    def die(self, *requests: SuspectRequest, engine: str = "", reporter: str = "w") -> None:
        self.deaths += 1
        self.suspects.death(engine or f"e{self.deaths}", reporter, requests)


@pytest.fixture
def world() -> SuspectsHarness:
    return SuspectsHarness()


def on(fingerprint: str, group=EVIL, *, begun: bool = False) -> SuspectRequest:
    return SuspectRequest(fingerprint, group, begun)


def test_two_deaths_refuse_a_request_for_ever_longer(world: SuspectsHarness):
    world.die(on("k"))
    for minutes in (1, 2, 4, 8, 15, 15):
        world.die(on("k"))
        assert world.suspects.refused("k") == minutes * MINUTE
        world.clock.now += minutes * MINUTE
        assert world.suspects.refused("k") == 0
    assert world.suspects.refused("another") == 0


def test_an_answer_clears_a_bystander(world: SuspectsHarness):
    for number in range(3):
        world.die(on("k"), on("g", GOOD))
        assert world.suspects.answered("g", GOOD)
        world.clock.now += 1
        assert not world.suspects.suspected(GOOD), number
    assert world.suspects.refused("g") == 0
    assert world.suspects.refused("k") > 0
    assert world.suspects.group_refused(EVIL) > 0
    assert world.suspects.group_refused(GOOD) == 0


def test_an_answer_after_two_deaths_ends_the_refusal(world: SuspectsHarness):
    world.die(on("g", GOOD))
    world.die(on("g", GOOD))
    assert world.suspects.refused("g") > 0
    world.suspects.answered("g", GOOD)
    assert world.suspects.refused("g") == 0


def test_one_that_kills_only_in_company_is_caught_in_the_end(world: SuspectsHarness):
    for _ in range(module.REQUEST_DEATHS_IN_ALL - 1):
        world.die(on("k"))
        world.suspects.answered("k", EVIL)
        assert world.suspects.refused("k") == 0
    world.die(on("k"))
    assert world.suspects.refused("k") == MINUTE
    world.suspects.answered("k", EVIL)
    assert world.suspects.refused("k") == MINUTE


def test_one_that_is_answered_all_the_time_is_only_unlucky(world: SuspectsHarness):
    """A prompt that many send, on a fleet whose engines crash again and again."""
    for _ in range(10):
        world.die(on("g", GOOD))
        for _ in range(module.ENOUGH_ANSWERS):
            world.suspects.answered("g", GOOD)
        assert world.suspects.refused("g") == 0
    assert not world.suspects.any


def test_ever_new_requests_hold_their_group_back_for_ever_longer(world: SuspectsHarness):
    for number in range(2):
        world.die(on(f"k{number}"))
        assert world.suspects.group_refused(EVIL) == 0
    for number, seconds in enumerate((30, 60, 120, 240, 480, LONGEST_REFUSAL)):
        world.die(on(f"l{number}"), on(f"m{number}"))
        assert world.suspects.group_refused(EVIL) == seconds
        if seconds < 200:
            world.clock.now += seconds
    assert set(world.suspects.refusals()) == {EVIL}


def test_a_groups_deaths_count_for_ten_minutes(world: SuspectsHarness):
    for number in range(5):
        world.die(on(f"k{number}"))
        world.clock.now += WINDOW / 2
        assert world.suspects.group_refused(EVIL) == 0


def test_all_that_a_group_had_there_must_be_answered(world: SuspectsHarness):
    """Harmless requests beside the killer do not make up for it."""
    for number in range(3):
        world.die(on(f"k{number}"), on(f"harmless{number}"))
        world.suspects.answered(f"harmless{number}", EVIL)
    assert world.suspects.group_refused(EVIL) > 0


def test_streams_that_had_begun_count_where_the_group_was_alone(world: SuspectsHarness):
    for number in range(3):
        world.die(on(f"s{number}", begun=True), on(f"g{number}", GOOD, begun=True))
    assert not world.suspects.suspected(EVIL)
    assert world.suspects.group_refused(GOOD) == 0
    for number in range(3):
        world.die(on(f"t{number}", begun=True))
    assert world.suspects.group_refused(EVIL) > 0


def test_a_stream_that_had_begun_counts_for_the_request(world: SuspectsHarness):
    for _ in range(2):
        world.die(on("s", begun=True), on("g", GOOD, begun=True))
        world.clock.now += 1
        world.suspects.answered("g", GOOD)
    assert world.suspects.refused("s") > 0
    assert world.suspects.known(EVIL)


def test_what_several_workers_say_of_one_death_is_one(world: SuspectsHarness):
    world.die(on("k"), engine="a", reporter="w1")
    world.clock.now += 1
    world.die(on("k"), on("k2"), engine="a", reporter="w2")
    assert world.suspects.refused("k") == 0
    world.die(on("k"), engine="a", reporter="w1")  # it came back, and died again
    assert world.suspects.refused("k") > 0


def test_later_it_is_another_death(world: SuspectsHarness):
    world.die(on("k"), engine="a", reporter="w1")
    world.clock.now += SAME_DEATH + 1
    world.die(on("k"), engine="a", reporter="w2")
    assert world.suspects.refused("k") > 0


def test_an_answer_before_the_death_says_nothing(world: SuspectsHarness):
    world.clock.now += 100
    world.die(on("k"))
    assert not world.suspects.answered("k", EVIL, ago=50)
    assert world.suspects.suspected(EVIL)


def test_suspects_are_kept_apart_only_for_a_while(world: SuspectsHarness):
    world.die(on("k"))
    world.clock.now += FRESH
    assert not world.suspects.suspected(EVIL)
    assert world.suspects.known(EVIL)


def test_all_is_forgotten_in_time(world: SuspectsHarness):
    for number in range(5):
        world.die(on(f"k{number}"), on("g", GOOD))
    world.clock.now += FORGET + LONGEST_REFUSAL
    world.die()
    assert not world.suspects.any
    assert not world.suspects.known(EVIL)


def test_memory_is_bounded(world: SuspectsHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST", 50)
    for number in range(500):
        world.die(on(f"k{number}", (f"t{number}", "")), engine=f"e{number % 7}")
    held = world.suspects
    assert repr(held) == "<Suspects 50 requests, 50 groups>"
    assert held.known(("t499", ""))
    for _ in range(200):
        world.die(on("x"))
        world.clock.now += 1
    assert len(held._groups[EVIL].deaths) <= module.MOST_DEATHS
