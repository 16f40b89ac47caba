"""Engines on trial: they get their share of the requests for what they hold, whatever they would cost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from adapters.model import SlotState
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.view import Action, Ask, EngineView, Fleet
from tests.unit.adapters.placement.scheduling.world import VERSION, engine, fleet

SCHEDULER = POLICIES["cost"]()


def on_trial(*engines: EngineView, share: float = 0.1) -> Fleet:
    """The first is on trial."""
    made = fleet(*engines)
    made.trials[engines[0].name] = share
    return made


@pytest.mark.parametrize("version", ["", VERSION])
def test_the_lot_decides_and_not_the_queue(version: str):
    busy, idle = engine("new", holds=True, in_flight=50), engine("old", holds=True)
    for views in ((busy, idle), (engine("new", holds=True), engine("old", holds=True, in_flight=50))):
        trial = on_trial(*views)
        picks = [SCHEDULER.pick(Ask(version, lot=n / 1000), trial, 0.0) for n in range(1000)]
        assert Counter((p.engine, p.on_trial) for p in picks if p) == {
            ("new", True): 100,
            ("old", False): 900,
        }


def test_each_of_several_trials_has_its_own_part_of_the_lots():
    trial = fleet(engine("new", holds=True), engine("newer", holds=True), engine("old", holds=True))
    trial.trials |= {"new": 0.1, "newer": 0.2}
    picks = [SCHEDULER.pick(Ask(VERSION, lot=lot), trial, 0.0) for lot in (0.05, 0.15, 0.35)]
    assert [p.engine for p in picks if p] == ["new", "newer", "old"]


@pytest.mark.parametrize(
    "new",
    [
        engine("new"),
        engine("new", held={VERSION: SlotState.LOADING}),
        engine("new", held={VERSION: SlotState.CACHED}),
        engine("new", holds=True, in_flight=3, limit=3),
        engine("new", holds=True, blocked="unhealthy"),
    ],
    ids=["not_there", "loading", "cached", "full", "down"],
)
def test_a_trial_delays_no_request(new: EngineView):
    pick = SCHEDULER.pick(Ask(VERSION, lot=0.0), on_trial(new, engine("old", holds=True)), 0.0)
    assert pick is not None
    assert (pick.engine, pick.action, pick.on_trial) == ("old", Action.SERVE, False)


def test_a_request_that_failed_there_goes_elsewhere():
    trial = on_trial(engine("new", holds=True), engine("old", holds=True))
    pick = SCHEDULER.pick(Ask(VERSION, lot=0.0, excluded={"new"}), trial, 0.0)
    assert pick is not None
    assert pick.engine == "old"


def test_it_comes_before_engines_on_which_the_request_failed():
    trial = on_trial(engine("new", holds=True, in_flight=9), engine("old", holds=True))
    pick = SCHEDULER.pick(Ask(VERSION, excluded={"old"}), trial, 0.0)
    assert pick is not None
    assert (pick.engine, pick.on_trial) == ("new", False)


def test_what_only_the_engine_on_trial_holds_is_loaded_elsewhere():
    pick = SCHEDULER.pick(Ask(VERSION), on_trial(engine("new", holds=True), engine("old")), 0.0)
    assert pick is not None
    assert (pick.engine, pick.action) == ("old", Action.LOAD)


def test_it_is_the_last_resort_but_not_in_place_of_one_that_is_full():
    new, down = engine("new", holds=True), engine("old", holds=True, blocked="unhealthy")
    pick = SCHEDULER.pick(Ask(VERSION), on_trial(new, down), 0.0)
    assert pick is not None
    assert (pick.engine, pick.on_trial) == ("new", False)
    full = engine("old", holds=True, in_flight=3, limit=3)
    assert SCHEDULER.pick(Ask(VERSION), on_trial(new, full), 0.0) is None


def test_explain_says_what_it_gets_and_nothing_is_prewarmed_there():
    trial = on_trial(engine("new"), engine("old"))
    old, new = SCHEDULER.scores(Ask(VERSION, lot=random.random()), trial, 0.0)
    assert (old.engine, new.engine, new.cost) == ("old", "new", None)
    assert new.reason == "on trial: gets 10% of the requests for what it holds"
