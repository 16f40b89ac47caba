"""Trials of engines: when they begin, and what becomes of a build that is as good as the others, slower, or
fails."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from adapters.model import Engine, Guard, Trial
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.view import Ask
from adapters.registry.canary_figures import (
    FAILURES,
    FIRST_TOKEN,
    REQUESTS,
    ArmName,
    Comparison,
    bucket,
    field_of,
)
from gateway.fleet.engines.operations.trials import DEFAULT_GUARD, after_registration, judged
from tests.support.harness import engine_document
from tests.unit.adapters.placement.scheduling.world import VERSION, engine, fleet

NOW = 1_795_000_000_000_000
OLD = replace(engine_document("old"), version="0.32.0")
TRIAL = Trial(10, Guard("rollback", window_seconds=100, then=(100,)), NOW)
STOPPED = replace(TRIAL, stopped="Slow.")


def named(version: str, trial: Trial | None = None) -> Engine:
    return replace(engine_document("new"), version=version, trial=trial)


@pytest.mark.parametrize(
    ("before", "version", "share", "expected"),
    [
        (None, "0.33.0", 5, Trial(5, DEFAULT_GUARD, NOW + 9)),
        (None, "0.33.0", None, None),
        (None, "0.32.0", 5, None),  # others have it
        (named("0.32.0"), "0.33.0", 5, Trial(5, DEFAULT_GUARD, NOW + 9)),
        (named("0.33.0"), "0.33.0", 5, None),  # it was accepted, and has restarted
        (named("0.33.0", TRIAL), "0.33.0", None, TRIAL),  # it has restarted
        (named("0.33.0", STOPPED), "0.33.0", 5, STOPPED),
        (named("0.32.0", TRIAL), "0.33.0", None, replace(TRIAL, since=NOW + 9)),  # its upgrade
        (named("0.33.0", STOPPED), "0.33.1", None, replace(TRIAL, since=NOW + 9)),  # with a fix
        (named("0.33.0", STOPPED), "0.32.0", None, None),  # the old version is back
        (named("0.33.0", TRIAL), "", None, TRIAL),  # it was not asked
    ],
)
def test_another_version_begins_a_trial(
    before: Engine | None, version: str, share: int | None, expected: Trial | None
):
    assert after_registration(before, named(version), share, [OLD], NOW + 9) == expected


def test_the_only_engine_of_a_fleet_is_not_tried():
    assert after_registration(None, named("0.33.0"), 5, [], NOW) is None


def test_a_suspect_engine_is_stopped_at_once_and_silence_of_the_rest_accepts_nothing():
    tried = named("0.33.0", TRIAL)
    suspect = judged(tried, {}, NOW, suspect="acme/support@v1 no longer answers as it did.").judgement
    assert suspect.verdict == "rollback"
    assert suspect.reason == "It is suspect: acme/support@v1 no longer answers as it did."
    alone = judged(tried, {"19 canary n": 500}, NOW + 101_000_000).judgement
    assert (alone.verdict, alone.reason) == (
        "waiting", "The rest has had 0 of the 50 requests that are needed."
    )  # fmt: skip


@dataclass
class Simulation:
    """A fleet of three old engines and a new one, which requests reach through the scheduler, and the guard."""

    failing: float = 0.0
    slower: float = 1.0
    seed: int = 1
    rate: int = 40
    """Requests in a second."""
    counts: Counter[str] = field(default_factory=Counter)
    trial: Engine = field(default_factory=lambda: named("0.33.0", TRIAL))

    def until_verdict(self) -> tuple[str, int]:
        """The first verdict, and the requests that the new engine had by then."""
        chance, scheduler = random.Random(self.seed), POLICIES["cost"]()
        engines = fleet(engine("new", holds=True), *(engine(f"old{n}", holds=True) for n in range(3)))
        engines.trials["new"] = TRIAL.share / 100
        comparison = Comparison.of_trial(self.trial)
        for second in range(2 * TRIAL.guard.window_seconds):
            now = NOW + second * 1_000_000
            for _ in range(self.rate):
                pick = scheduler.pick(Ask(VERSION, lot=chance.random()), engines, float(second))
                assert pick is not None
                assert pick.on_trial == (pick.engine == "new")
                arm: ArmName = "canary" if pick.on_trial else "live"
                took = 0.1 * chance.lognormvariate(0, 0.6)
                names = [
                    REQUESTS,
                    f"{FIRST_TOKEN}{bucket(int(took * 1e9 * (self.slower if pick.on_trial else 1)))}",
                ]
                if pick.on_trial and chance.random() < self.failing:
                    names = [REQUESTS, FAILURES]
                for name in names:
                    self.counts[field_of(comparison.slice_at(now), arm, name)] += 1
            verdict = judged(self.trial, self.counts, now).judgement.verdict
            if verdict not in ("waiting", "keep"):
                return verdict, judged(self.trial, self.counts, now).engine.requests
        raise AssertionError("no verdict")


@pytest.mark.parametrize(
    ("simulation", "expected", "most"),
    [
        (Simulation(), "promote", 800),
        (Simulation(failing=1.0), "rollback", 60),
        (Simulation(failing=0.1), "rollback", 200),
        (Simulation(slower=2.0), "rollback", 450),
    ],
    ids=["as_good", "fails", "fails_sometimes", "slow"],
)
def test_a_worse_build_harms_few_requests_and_a_good_one_is_accepted(
    simulation: Simulation, expected: str, most: int
):
    verdict, requests = simulation.until_verdict()
    assert verdict == expected
    assert requests <= most
