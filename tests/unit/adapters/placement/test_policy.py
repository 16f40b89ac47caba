from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.policy import LEAST_SHARE, Candidate, decide, explained, share_after

IDLE = Candidate(
    engine="a", in_flight=0, slots=2, max_rank=16, active=0, is_active=False, assigned=0, holds=False
)


def at(engine: str, **changes: object) -> Candidate:
    return replace(IDLE, engine=engine, **changes)


@pytest.mark.parametrize(
    ("candidates", "expected", "load"),
    [
        pytest.param([at("a"), at("b", holds=True, in_flight=50)], "b", False, id="a holder beats a load"),
        pytest.param(
            [at("a", holds=True, in_flight=3), at("b", holds=True, in_flight=2)], "b", False, id="least loaded holder"
        ),
        pytest.param([at("a", assigned=2), at("b", assigned=1)], "b", True, id="a free slot before an eviction"),
        pytest.param(
            [at("a", assigned=2, active=2), at("b", assigned=2, active=1)], "b", True, id="an idle victim before a busy one"
        ),
        pytest.param([at("a", in_flight=9), at("b", in_flight=8)], "b", True, id="the less loaded one loads"),
        pytest.param([at("b"), at("a")], "a", True, id="ties by name, so that workers agree"),
        pytest.param([at("a", holds=True, healthy=False), at("b")], "b", True, id="a dead holder is no holder"),
        pytest.param([at("a", cordoned=True), at("b", in_flight=99)], "b", True, id="cordoned takes no loads"),
        pytest.param([at("a", cordoned=True, holds=True), at("b")], "a", False, id="cordoned serves what it holds"),
        pytest.param([at("a", draining=True, holds=True), at("b")], "b", True, id="draining serves nothing"),
        pytest.param([at("a", max_rank=4), at("b", in_flight=99)], "b", True, id="the rank must fit"),
        pytest.param([at("a", slots=0), at("b", in_flight=99)], "b", True, id="no slots, no load"),
        pytest.param([at("a", holds=True, failed_before=True), at("b")], "b", True, id="not where it failed before"),
        pytest.param([at("a", holds=True, failed_before=True)], "a", False, id="where it failed, if nothing is left"),
        pytest.param([at("a", healthy=False)], None, False, id="nothing left"),
        pytest.param([], None, False, id="no engines"),
    ],
)  # fmt: skip
def test_the_choice(candidates, expected, load):
    decision = decide(candidates, rank=8)
    assert (decision.engine, decision.load) == (expected, load)
    assert [s.engine for s in decision.scores] == [c.engine for c in candidates]
    assert all(s.reason for s in decision.scores)


@pytest.mark.parametrize(
    ("seconds", "period", "share"),
    [
        (0, 10, LEAST_SHARE),
        (0.5, 10, LEAST_SHARE),
        (5, 10, 0.5),
        (10, 10, 1),
        (99, 10, 1),
        (0, 0, 1),
        (-1, 10, LEAST_SHARE),
    ],
)
def test_the_share_of_a_slow_start(seconds, period, share):
    assert share_after(seconds, period) == share


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        pytest.param([at("a", share=0.1), at("b", in_flight=8)], "b", id="an empty one that has just come up waits"),
        pytest.param([at("a", share=0.1), at("b", in_flight=10)], "a", id="until the others have ten times as much"),
        pytest.param([at("a", share=0.5, in_flight=4), at("b", in_flight=8)], "b", id="half its share, half the load"),
        pytest.param([at("a", share=0.1, in_flight=500)], "a", id="never starved when it is the only one"),
        pytest.param([at("a", share=0.1, in_flight=500), at("b", healthy=False)], "a", id="nor when the others are down"),
        pytest.param([at("a", share=0.2), at("b", share=0.1)], "a", id="all new: the oldest first"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rank", [8, None], ids=["adapter", "base"])
def test_slow_start(candidates, expected, rank):
    decision = decide([replace(c, holds=True) for c in candidates], rank=rank)
    assert decision.engine == expected
    if expected == "a":
        assert "slow start" in decision.scores[0].reason


def test_a_slow_start_moves_no_adapter_from_where_it_is():
    decision = decide([at("a", holds=True, share=0.1, in_flight=50), at("b")], rank=8)
    assert (decision.engine, decision.load) == ("a", False)


def test_requests_flow_in_as_the_share_rises():
    """Two engines with endless work: what is in flight is divided as the shares are."""
    for share in (0.1, 0.25, 0.5, 1.0):
        load = {"a": 0, "b": 0}
        for _ in range(110):
            pair = [at(n, holds=True, in_flight=load[n], share=share if n == "a" else 1.0) for n in load]
            load[decide(pair, rank=8).engine] += 1
        assert load["a"] / load["b"] == pytest.approx(share, abs=0.03)


def test_every_engine_holds_the_base_model():
    decision = decide([at("a", in_flight=2, max_rank=1, slots=0), at("b", in_flight=3)], rank=None)
    assert (decision.engine, decision.load) == ("a", False)


candidates = st.builds(
    Candidate,
    engine=st.text("abcdef", min_size=1, max_size=3),
    in_flight=st.integers(0, 300),
    slots=st.integers(0, 8),
    max_rank=st.integers(1, 64),
    active=st.integers(0, 8),
    is_active=st.booleans(),
    assigned=st.integers(0, 8),
    holds=st.booleans(),
    healthy=st.booleans(),
    cordoned=st.booleans(),
    draining=st.booleans(),
    failed_before=st.booleans(),
)


@given(st.lists(candidates, unique_by=lambda c: c.engine), st.integers(1, 64))
def test_the_order_of_engines_changes_nothing_and_the_unfit_are_never_chosen(found, rank):
    decision = decide(found, rank=rank)
    backwards = decide(found[::-1], rank=rank)
    assert (decision.engine, decision.load) == (backwards.engine, backwards.load)
    chosen = next((c for c in found if c.engine == decision.engine), None)
    if chosen is None:
        assert all(s.cost is None for s in decision.scores)
    else:
        assert chosen.healthy
        assert not chosen.draining
        assert chosen.max_rank >= rank
        assert decision.load != chosen.holds


def test_what_is_explained_is_what_is_done():
    """Engines that hold it come first, whatever a load elsewhere would cost."""
    busy, free = at("m1", holds=True, in_flight=50), at("m2")
    shown = explained(decide([busy, free], rank=8))
    assert (shown.engine, shown.load) == ("m1", False)
    assert [(s.engine, s.cost) for s in shown.scores] == [("m1", 900.0), ("m2", None)]
    assert shown.scores[1].reason == (
        "not considered: m1 holds the version; otherwise: load into a free slot; 0 in flight; 310 ms"
    )


@pytest.mark.parametrize(
    "candidates", [[], [at("a"), at("b", in_flight=3)], [at("a", holds=True), at("b", holds=True)],
                   [at("a", holds=True, healthy=False), at("b")]]
)  # fmt: skip
def test_where_the_costs_decide_they_are_all_shown(candidates):
    decision = decide(candidates, rank=8)
    assert explained(decision) == decision
