from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.model import Placement, SlotState, Version
from adapters.placement.mirror import Mirror
from adapters.placement.residency import Slot
from adapters.placement.scheduling.costs import EngineCosts
from adapters.placement.scheduling.filters import NOT_STARTED_WITH, refusal
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.prefix_cache import PRIOR, SAVED, Seen
from adapters.placement.scheduling.slow_start import LEAST_SHARE, share_after
from adapters.placement.scheduling.view import Action, Ask, EngineView
from tests.support.search import examples
from tests.unit.adapters.placement.scheduling.world import VERSION, engine, fleet

COST = POLICIES["cost"]()
ASK = Ask(VERSION, rank=8)
CACHED = {VERSION: SlotState.CACHED}


def chosen(ask: Ask, *engines: EngineView) -> str | None:
    pick = COST.pick(ask, fleet(*engines), 0.0)
    return pick.engine if pick else None


@pytest.mark.parametrize(
    ("engines", "expected", "action"),
    [
        pytest.param([engine("a"), engine("b", holds=True, in_flight=5)], "b", Action.SERVE, id="a quick holder beats a load"),
        pytest.param([engine("a"), engine("b", holds=True, in_flight=50)], "a", Action.LOAD, id="a load beats a long queue"),
        pytest.param([engine("a", holds=True, in_flight=3), engine("b", holds=True, in_flight=2)], "b", Action.SERVE, id="the less loaded holder"),
        pytest.param([engine("a", held=CACHED, cpu_slots=4), engine("b")], "a", Action.ACTIVATE, id="from CPU memory before from disk"),
        pytest.param([engine("a", held=CACHED, cpu_slots=4, in_flight=90), engine("b")], "b", Action.LOAD, id="but not behind a long queue"),
        pytest.param([engine("a", active=2), engine("b", active=1)], "b", Action.LOAD, id="where fewer adapters are in flight"),
        pytest.param([engine("a", in_flight=20), engine("b", in_flight=8)], "b", Action.LOAD, id="the less loaded one loads"),
        pytest.param([engine("a", holds=True, blocked="unhealthy"), engine("b")], "b", Action.LOAD, id="a dead holder is no holder"),
        pytest.param([engine("a", closed="cordoned"), engine("b", in_flight=99)], "b", Action.LOAD, id="cordoned takes no loads"),
        pytest.param([engine("a", closed="cordoned", holds=True), engine("b")], "a", Action.SERVE, id="cordoned serves what it holds"),
        pytest.param([engine("a", max_rank=4), engine("b", in_flight=99)], "b", Action.LOAD, id="the rank must fit"),
        pytest.param([engine("a", slots=0), engine("b", in_flight=99)], "b", Action.LOAD, id="no slots, no load"),
        pytest.param([engine("a", pinned=2), engine("b", in_flight=99)], "b", Action.LOAD, id="pinned slots cannot be had"),
        pytest.param([engine("a", pinned=2, held={VERSION: SlotState.LOST})], "a", Action.LOAD, id="a lost version has its pinned slot"),
        pytest.param([engine("a", pinned=2, held=CACHED, cpu_slots=4)], None, None, id="a cached one has none"),
        pytest.param([engine("a", holds=True, doubtful=True), engine("b", holds=True, in_flight=50)], "b", Action.SERVE, id="not where it may hang"),
        pytest.param([engine("a", held={VERSION: SlotState.LOADING}), engine("b")], "a", Action.JOIN, id="a load in progress before another"),
        pytest.param([engine("a", held={"x": SlotState.LOADING}), engine("b", in_flight=1)], "b", Action.LOAD, id="loads wait for each other"),
        pytest.param([engine("a", held={VERSION: SlotState.LEAVING})], None, None, id="a slot that is being vacated"),
        pytest.param([engine("a", blocked="unhealthy")], None, None, id="nothing left"),
        pytest.param([], None, None, id="no engines"),
    ],
)  # fmt: skip
def test_the_choice(engines: list[EngineView], expected: str | None, action: Action | None):
    pick = COST.pick(ASK, fleet(*engines), 0.0)
    assert (pick and pick.engine, pick and pick.action) == (expected, action)
    scores = COST.scores(ASK, fleet(*engines), 0.0)
    assert {s.engine for s in scores} == {e.name for e in engines}
    assert all(s.reason for s in scores)


def test_an_engine_with_a_version_merged_into_its_weights_competes_for_that_and_takes_nothing_else():
    first, second = (
        Ask(VERSION, 8, document=Version("acme/a", n, "sha256:0", VERSION, "/a", "base", 8, 1, "/a", 0))
        for n in (1, 2)
    )

    def merged(**fields: Any) -> EngineView:
        return engine("m", serves="acme/a@v1", only=("acme/a@v1",), costs=EngineCosts.merged(), **fields)

    assert chosen(first, engine("a", holds=True, in_flight=3), merged(holds=True, in_flight=5)) == "m"
    assert chosen(first, engine("a", holds=True), merged(holds=True, in_flight=5)) == "a"
    assert chosen(first, engine("a", in_flight=99), merged()) == "a", "it has yet to be compared"
    for ask in (Ask(""), second):
        assert chosen(ask, engine("a", in_flight=99), merged(holds=True)) == "a"
        (score,) = COST.scores(ask, fleet(merged(holds=True)), 0.0)
        assert (score.cost, score.reason) == (None, "serves only acme/a@v1")


@pytest.mark.parametrize("action", ["serve", "load"])
def test_an_engine_where_it_failed_is_the_last_resort(action: str):
    failed = engine("a", holds=action == "serve")
    ask = Ask(VERSION, rank=8, excluded={"a"})
    other = COST.pick(ask, fleet(failed, engine("b", in_flight=90)), 0.0)
    alone = COST.pick(ask, fleet(failed), 0.0)
    assert other is not None
    assert alone is not None
    assert (other.engine, alone.engine) == ("b", "a")


def test_a_cached_version_that_the_engine_lost_costs_a_load():
    """Loads of others filled its memory, of which the placement knows nothing."""
    lost, empty = engine("a", held=CACHED, cpu_slots=2, mirror=Mirror(1, 2)), engine("b")
    assert chosen(ASK, lost, empty) == "a"
    lost.changed(VERSION, SlotState.LOADING, SlotState.RESIDENT)
    for other in ("x", "y"):
        lost.changed(other, SlotState.LOADING, SlotState.RESIDENT)
        lost.changed(other, SlotState.RESIDENT, None)
    assert lost.evicted(VERSION)
    scores = {s.engine: s for s in COST.scores(ASK, fleet(lost, empty), 0.0)}
    assert scores["a"].reason.startswith("must read it from disk again")
    assert dict(scores["a"].terms)["activate"] > 50
    lost.changed(VERSION, SlotState.RESIDENT, SlotState.LOST)
    assert not lost.evicted(VERSION)


def test_a_load_costs_more_where_another_version_must_go_for_it():
    full, free = engine("a", held={"x": SlotState.CACHED}, cpu_slots=1), engine("b", cpu_slots=1)
    costs = {s.engine: dict(s.terms)["load"] for s in COST.scores(ASK, fleet(full, free), 0.0)}
    assert costs["a"] - costs["b"] == pytest.approx(full.costs.evict)
    assert full.costs.evict > 0


def test_whoever_may_not_load_is_told_why():
    views = [engine("a", max_rank=8), engine("b", max_rank=7), engine("c", pinned=2)]
    assert [refusal(view, ASK, Action.LOAD) for view in views] == [
        "", "rank 8 exceeds its maximum of 7", "every slot is pinned",
    ]  # fmt: skip


def test_labels_are_hard_constraints():
    near, far = (
        engine("near", labels={"region": "eu"}, in_flight=200),
        engine("far", labels={"region": "us"}, holds=True),
    )
    ask = Ask(VERSION, rank=8, requires={"region": "eu"})
    assert chosen(ask, near, far) == "near"
    assert COST.pick(ask, fleet(far), 0.0) is None
    assert COST.scores(ask, fleet(far), 0.0)[0].reason == "requires region=eu"


def test_an_engine_that_loads_nothing_later_holds_what_it_was_started_with():
    version = Version("acme/a", 1, "sha256:0", VERSION, "/a", "base", 8, 1, "/a", 0)
    started, other = engine("a", only=("acme/a@v1",)), engine("b", only=("acme/b@v1",))
    for ask in (Ask(VERSION, rank=8, document=version), Ask(VERSION, rank=8)):
        reasons = {view.name: refusal(view, ask, Action.LOAD) for view in (started, other, engine("c"))}
        assert reasons["b"] == NOT_STARTED_WITH
        assert reasons["c"] == ""
        assert reasons["a"] == ("" if ask.document else NOT_STARTED_WITH)
    assert refusal(other, Ask(""), Action.SERVE) == ""


def test_an_engine_whose_vllm_ignores_some_of_its_weights_gets_no_load():
    version = Version("acme/a", 1, "sha256:0", VERSION, "/a", "base", 8, 1, "/a", 0, min_vllm="0.33")
    ask = Ask(VERSION, rank=8, document=version)
    views = [
        engine("a", release=(0, 32)),
        engine("b", release=(0, 33)),
        engine("c", release=(1, 0)),
        engine("d"),
    ]
    assert [refusal(view, ask, Action.LOAD) for view in views] == [
        needs := "needs vLLM 0.33 or later",
        "",
        "",
        needs,
    ]


def test_no_more_replicas_than_allowed():
    crowded, free = engine("a", holds=True, in_flight=90), engine("b")
    capped = Ask(VERSION, rank=8, max_replicas=1)
    assert (chosen(ASK, crowded, free), chosen(capped, crowded, free)) == ("b", "a")
    cached = engine("b", held=CACHED, cpu_slots=4)
    assert (chosen(ASK, crowded, cached), chosen(capped, crowded, cached)) == ("b", "a")
    reasons = {s.engine: s.reason for s in COST.scores(capped, fleet(crowded, cached), 0.0)}
    assert reasons["b"] == "already on its maximum number of engines (1)"


def test_cached_tokens_count_as_far_as_they_are_expected():
    """Of two holders, the one with the longer prefix wins, unless its queue costs more than that saves, or its
    cache has lost such prompts."""
    a, b = engine("a", holds=True), engine("b", holds=True)
    ask = Ask(VERSION, rank=8, prompt_tokens=20_000, seen={"a": Seen(0.1, 2), "b": Seen(0.9, 2)})
    pick = COST.pick(ask, fleet(a, b), 0.0)
    assert pick is not None
    assert (pick.engine, pick.cached) == ("b", round(18_000 * PRIOR))
    scores = {s.engine: dict(s.terms) for s in COST.scores(ask, fleet(a, b), 0.0)}
    saved = scores["b"]["prompt tokens in its cache"]
    assert saved == pytest.approx(-SAVED * 0.065 * 18_000 * PRIOR)
    b.sent(VERSION, round(-saved / 0.065) + 2000)
    assert chosen(ask, a, b) == "a"
    b.answering(b.pending)
    assert chosen(ask, a, b) == "b"
    b.prefixes.kept[2] = 0.0
    assert chosen(ask, a, b) == "a"


def test_the_base_model_goes_where_its_prompt_is_cached():
    engines = [engine(name, in_flight=number) for number, name in enumerate("abc")]
    assert chosen(Ask("", prompt_tokens=4000), *engines) == "a"
    assert chosen(Ask("", prompt_tokens=4000, seen={"c": Seen(0.9, 1)}), *engines) == "c"
    assert chosen(Ask("", prompt_tokens=100, seen={"c": Seen(0.9, 1), "gone": Seen(1.0, 0)}), *engines) == "a"


def test_base_model_requests_go_by_load():
    pick = COST.pick(Ask(""), fleet(engine("a", in_flight=3), engine("b", in_flight=2, slots=0)), 0.0)
    assert pick is not None
    assert (pick.engine, pick.action) == ("b", Action.SERVE)


@pytest.mark.parametrize(
    ("seconds", "period", "share"),
    [(0, 10, LEAST_SHARE), (0.5, 10, LEAST_SHARE), (5, 10, 0.5), (10, 10, 1), (99, 10, 1), (0, 0, 1), (-1, 10, LEAST_SHARE)],
)  # fmt: skip
def test_the_share_of_a_slow_start(seconds: float, period: float, share: float):
    assert share_after(seconds, period) == share


def test_requests_flow_in_as_the_share_rises():
    """Two engines with endless work: what is in flight is divided as the shares are."""
    for share in (0.1, 0.25, 0.5, 1.0):
        pair = engine("a", holds=True, share=share), engine("b", holds=True)
        for _ in range(110):
            pick = COST.pick(ASK, fleet(*pair), 0.0)
            assert pick is not None
            pair[pick.engine == "b"].sent(VERSION, 0)
        assert pair[0].in_flight / pair[1].in_flight == pytest.approx(share, abs=0.1)


engines = st.builds(
    engine,
    st.text("abcdef", min_size=1, max_size=3),
    in_flight=st.integers(0, 300),
    slots=st.integers(0, 8),
    cpu_slots=st.integers(0, 16),
    max_rank=st.integers(1, 64),
    active=st.integers(0, 8),
    held=st.dictionaries(st.sampled_from([VERSION, "x", "y"]), st.sampled_from(SlotState)),
    blocked=st.sampled_from(["", "", "unhealthy"]),
    closed=st.sampled_from(["", "", "cordoned"]),
    labels=st.sampled_from([{}, {"region": "eu"}, {"region": "us"}]),
    share=st.floats(0.1, 1),
)
fleets = st.lists(engines, unique_by=lambda e: e.name, max_size=8)
asks = st.builds(
    Ask,
    st.sampled_from([VERSION, VERSION, ""]),
    rank=st.integers(1, 64),
    prompt_tokens=st.integers(0, 1000),
    excluded=st.frozensets(st.text("abcdef", min_size=1, max_size=1)),
    requires=st.sampled_from([{}, {"region": "eu"}]),
    max_replicas=st.sampled_from([None, None, 1, 2]),
    seen=st.dictionaries(st.text("abcdef", min_size=1, max_size=1), st.just(Seen(0.9, 1)), max_size=3),
)


@pytest.mark.parametrize("policy", POLICIES)
@examples(25)
@given(fleets, asks)
def test_no_policy_breaks_a_constraint(policy: str, found: list[EngineView], ask: Ask):
    pick = POLICIES[policy]().pick(ask, fleet(*found), 1.0)
    if pick is None:
        return
    chosen = next(e for e in found if e.name == pick.engine)
    assert not chosen.blocked
    assert all(chosen.labels.get(k) == v for k, v in ask.requires.items())
    if pick.action in {Action.LOAD, Action.ACTIVATE}:
        assert not chosen.closed
        assert chosen.slots > 0
        assert chosen.max_rank >= ask.rank
    if pick.engine in ask.excluded:
        others = [e for e in found if e.name not in ask.excluded]
        assert POLICIES[policy]().pick(ask, fleet(*others), 1.0) is None or ask.max_replicas


def place(version: str, state: SlotState | None, view: EngineView) -> None:
    before = view.state(version, 1.0)
    view.changed(version, before, state)  # as `Residency` tells of it, before it is so
    view.held.place(version, Slot(Placement(view.name, version, state), 0.0) if state else None)


def learn(milliseconds: float, view: EngineView) -> None:
    view.costs.load_base = milliseconds
    view.refresh()


changes = st.sampled_from([
    lambda view: view.sent("z", 100),
    lambda view: view.in_flight and view.ended(next(iter(view.uses), "")),
    lambda view: view.heard(30, 0, 1),
    lambda view: view.heard(0, 0, 0),
    lambda view: setattr(view, "limit", 0),
    *(partial(learn, milliseconds) for milliseconds in (10.0, 200.0)),
    *(partial(place, version, state) for version in (VERSION, "x", "y") for state in (None, *SlotState)),
])  # fmt: skip


@examples(50)
@given(fleets, st.lists(st.tuples(asks, st.integers(0, 7), changes), min_size=1, max_size=6))
def test_the_quick_way_finds_the_best_score(found: list[EngineView], steps: list[Any]):
    """Whatever has changed since the fleet was ranked."""
    known = fleet(*found)
    for ask, number, change in steps:
        pick = COST.pick(ask, known, 1.0)
        eligible = [s for s in COST.scores(ask, known, 1.0) if s.cost is not None]
        if pick is None:  # a last resort is left alone while another engine is full
            assert all(s.engine in ask.excluded for s in eligible)
        else:
            assert pick.cost == pytest.approx(eligible[0].cost)
            best = next(s for s in eligible if s.engine == pick.engine)
            assert best.action is pick.action
            assert sum(ms for _, ms in best.terms) == pytest.approx(pick.cost)
        if found:
            change(found[number % len(found)])


def test_an_engine_with_room_in_its_memory_again_comes_first():
    known = fleet(*(engine(name, held={"x": SlotState.CACHED}, cpu_slots=1) for name in "abcde"))
    homes = known.homes.first(VERSION)
    first, second = (view for name, view in known.engines.items() if name not in homes)
    ask = Ask(VERSION, rank=8, excluded=homes)
    picks = [COST.pick(ask, known, 0.0)]
    place("x", None, second)
    picks.append(COST.pick(ask, known, 0.0))
    assert [pick and pick.engine for pick in picks] == [first.name, second.name]
