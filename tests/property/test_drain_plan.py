"""A drain's plan, for whatever the fleet looks like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.model import Engine, SlotState, Version
from adapters.placement.drain_plan import DrainSnapshot, EngineSnapshot, HeldVersion, drain_plan
from tests.support.search import examples

NAMES = [f"v{i}" for i in range(8)]

held = st.builds(
    HeldVersion,
    st.sampled_from(SlotState),
    st.floats(0, 10_000),
    st.integers(0, 2),
)


def _engine(name: str) -> st.SearchStrategy[EngineSnapshot]:
    def made(slots, max_rank, versions, serves, closed):
        engine = Engine(name, f"http://{name}", "base", "h100", slots=slots, max_rank=max_rank)
        return EngineSnapshot(engine, versions, serves, closed)

    return st.builds(
        made,
        st.integers(0, 4),
        st.sampled_from([8, 16]),
        st.dictionaries(st.sampled_from(NAMES), held, max_size=5),
        st.booleans(),
        st.sampled_from(["", "", "cordoned"]),
    )


snapshots = st.builds(
    DrainSnapshot,
    _engine("leaving"),
    st.tuples(_engine("b"), _engine("c"), _engine("d")),
    st.fixed_dictionaries(
        {},
        optional={
            n: st.builds(
                lambda rank, n=n: Version(f"t/{n}", 1, "sha256:0", n, "/x", "base", rank, 1, "", 0),
                st.sampled_from([8, 16]),
            )
            for n in NAMES
        },
    ),
    st.frozensets(st.sampled_from(NAMES)),
    st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from("bcd")), st.just("no"), max_size=4),
)


@examples(150)
@given(snapshots)
def test_the_plan_covers_each_callable_version_once_and_keeps_to_slots_ranks_and_pins(snapshot):
    plan = drain_plan(snapshot)
    named = [m.version.engine_name for m in plan.moves]
    named += [v.engine_name for v, _ in (*plan.elsewhere, *plan.stays)]
    assert sorted(named) == sorted(snapshot.leaving.held.keys() & snapshot.versions.keys())
    for name, other in {other.engine.name: other for other in snapshot.others}.items():
        there = SlotState.LOADING, SlotState.LOST  # joined, or with a slot of its own
        joined = {n for n, h in other.held.items() if h.state in there}
        arrived = [m for m in plan.moves if m.to == name and m.version.engine_name not in joined]
        gone = [m.replaces for m in arrived if m.replaces]
        in_slots = {n for n, h in other.held.items() if h.state is not SlotState.CACHED}
        assert len(set(gone)) == len(gone)
        if arrived:
            assert not other.closed
            assert len(in_slots) - len(gone) + len(arrived) <= max(other.engine.slots, len(in_slots))
        for move in arrived:
            assert move.version.rank <= other.engine.max_rank
            assert (move.version.engine_name, name) not in snapshot.failed
            if move.replaces:
                victim = other.held[move.replaces]
                assert move.replaces not in snapshot.pinned
                assert not victim.in_flight
                assert victim.state is not SlotState.LOADING
                assert victim.idle > move.idle
    order = [(-m.in_flight, m.idle) for m in plan.moves]
    assert order == sorted(order), "the hottest move first"
