"""Which engines hang: decided purely, over any course of looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.outlier_ejection import (
    FORGIVEN,
    LONGEST_PAUSE,
    Action,
    EjectionState,
    Observation,
    Probe,
    Rules,
    down,
    evaluate,
    next_probe,
    pause,
    reported,
    who_is_ejected,
)
from tests.support.search import examples

RULES = Rules(timeout=20.0, pause=10.0)
TICK = 1.0

Step = tuple[bool, bool, bool, bool]
"""waits, moved, the probe passes if there is one, ejected."""
steps = st.lists(st.tuples(*[st.booleans()] * 4), max_size=120)


class Course:
    """One engine over many looks, a second apart; a probe takes as long as it may."""

    def __init__(self) -> None:
        self.now, self.ejection = 1000.0, EjectionState()
        self.asked: float | None = None
        self.acts: list[tuple[float, Action]] = []

    def step(
        self, *, waits: bool = True, moved: bool = False, passes: bool = False, ejected: bool = True
    ) -> Action:
        self.now += TICK
        probe = Probe.NONE
        if self.asked is not None:
            over = passes or self.now - self.asked >= RULES.timeout / 2
            probe = (Probe.PASSED if passes else Probe.FAILED) if over else Probe.RUNNING
            self.asked = None if over else self.asked
        seen = Observation(self.now, TICK, waits, moved, probe)
        self.ejection, act = evaluate(self.ejection, seen, RULES, ejected=ejected)
        if act is Action.PROBE:
            assert self.asked is None, "two probes at once"
            self.asked = self.now
        if act:
            self.acts.append((self.now, act))
        return act

    def until(self, act: Action, **seen: bool) -> float:
        """Seconds until it is so."""
        began = self.now
        while self.step(**seen) is not act:
            assert self.now - began < 2 * LONGEST_PAUSE
        return self.now - began


@examples(40)
@given(steps)
def test_no_engine_is_ejected_that_was_not_asked_and_silent_for_all_the_time(course: list[Step]):
    engine = Course()
    silent = 0.0
    for waits, moved, passes, ejected in course:
        hung = engine.ejection.hangs
        before = engine.asked is not None and passes
        act = engine.step(waits=waits, moved=moved, passes=passes, ejected=ejected)
        silent = 0.0 if moved or before or hung else silent + TICK
        if act is Action.EJECT:
            assert silent >= RULES.timeout * 0.9
            assert Action.PROBE in {act for _, act in engine.acts[-2:]}


@examples(40)
@given(steps)
def test_what_hangs_is_asked_before_it_returns_and_left_alone_for_its_pause(course: list[Step]):
    engine = Course()
    for waits, moved, passes, _ in course:
        act = engine.step(waits=waits, moved=moved, passes=passes)
        if act is Action.RETURN:
            assert passes
        if act is Action.PROBE and engine.ejection.hangs:
            assert engine.now >= engine.ejection.until


@examples(40)
@given(st.lists(st.booleans(), max_size=200))
def test_an_engine_that_moves_now_and_then_is_never_ejected(moves: list[bool]):
    """A queue however deep, a prefill however long."""
    engine, still = Course(), 0
    for moved in moves:
        still = 0 if moved or still >= RULES.timeout / TICK - 2 else still + 1
        assert engine.step(moved=still == 0) is not Action.EJECT


def test_a_hang_is_found_in_time_and_a_hang_that_lasts_is_asked_about_ever_more_rarely():
    engine = Course()
    assert engine.until(Action.EJECT) == RULES.timeout
    waits = [engine.until(Action.PROBE) for _ in range(40)]
    assert waits[0] == RULES.pause
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(LONGEST_PAUSE + RULES.timeout / 2, abs=2)
    assert engine.until(Action.RETURN, passes=True) <= LONGEST_PAUSE + RULES.timeout


def test_a_sign_of_work_ends_the_longer_wait_but_not_the_first_pause():
    engine = Course()
    engine.until(Action.EJECT)
    assert engine.until(Action.PROBE, moved=True) == RULES.pause
    for _ in range(5):
        engine.until(Action.PROBE)
    assert engine.until(Action.PROBE, moved=True) <= RULES.timeout / 2 + 2 * TICK


def test_what_is_held_is_asked_often_and_is_back_at_once():
    engine = Course()
    engine.until(Action.EJECT, ejected=False)
    assert engine.until(Action.PROBE, ejected=False) <= RULES.timeout / 4 + TICK
    assert engine.step(passes=True, ejected=False) is Action.RETURN


def test_each_hang_of_late_makes_the_pause_longer_until_it_is_forgiven():
    engine = Course()
    for number in (1, 2, 3):
        engine.until(Action.EJECT)
        assert engine.until(Action.PROBE) == RULES.pause * number
        engine.until(Action.RETURN, passes=True)
    for _ in range(int(FORGIVEN / TICK)):
        engine.step(moved=True)
    engine.until(Action.EJECT)
    assert engine.until(Action.PROBE) == RULES.pause


def test_where_one_request_alone_is_stuck_probes_become_rarer():
    engine = Course()
    waits = [engine.until(Action.PROBE, passes=True) for _ in range(7)]
    assert waits[0] == RULES.timeout / 2
    assert waits == sorted(waits)
    assert waits[-1] >= 16 * waits[0]
    assert not engine.ejection.hangs


def test_who_loses_patience_and_comes_again_is_remembered():
    """Clients that give up before a silence is long enough, each for itself."""
    engine, seconds = Course(), 0
    while engine.step(waits=seconds % 4 == 0) is not Action.PROBE:
        seconds += 1
    assert seconds == pytest.approx(4 * RULES.timeout / 2, abs=8)


def test_an_accusation_is_settled_by_a_probe():
    for passes, act in ((True, Action.NOTHING), (False, Action.EJECT)):
        engine = Course()
        engine.ejection, engine.asked = reported(engine.ejection, RULES), engine.now
        acts = [engine.step(waits=False, passes=passes) for _ in range(11)]
        assert acts.count(act) == (11 if passes else 1)
        hanging = reported(engine.ejection, RULES)
        assert hanging == engine.ejection or not engine.ejection.hangs


def test_what_hung_and_went_down_is_asked_at_once_and_used_when_it_has_answered():
    engine = Course()
    for _ in range(3):
        engine.until(Action.EJECT)
        engine.until(Action.RETURN, passes=True)
    engine.until(Action.EJECT)
    engine.ejection = down(engine.ejection)
    assert engine.step() is Action.PROBE
    assert engine.step(passes=True) is Action.RETURN


def test_a_worker_that_was_away_has_heard_no_silence():
    engine = Course()
    engine.step()
    engine.now += 3600
    assert engine.step() is Action.NOTHING


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 100), max_size=12), st.integers(0, 12))
def test_at_most_half_of_a_fleet_is_kept_away_and_never_the_last(hanging: dict[str, float], others: int):
    engines = len(hanging) + others
    ejected = who_is_ejected(hanging, engines)
    assert ejected <= hanging.keys()
    assert len(ejected) == min(len(hanging), engines // 2)
    assert not ejected or len(ejected) < engines
    assert all(hanging[one] <= hanging[other] for one in ejected for other in hanging.keys() - ejected)


@given(st.integers(1, 1000), st.floats(0.1, 1000))
def test_pauses_grow_to_their_limit(ejections: int, base: float):
    rules = replace(RULES, pause=base)
    assert pause(ejections, rules) <= pause(ejections + 1, rules) <= LONGEST_PAUSE
    ejection = EjectionState(since=0.0, ejections=ejections, until=pause(ejections, rules))
    assert next_probe(ejection, rules, ejected=True) == pause(ejections, rules)
