"""What a drain loads where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.model import Engine, SlotState, Version
from adapters.placement.drain_plan import (
    RECENT_SECONDS,
    DrainSnapshot,
    EngineSnapshot,
    HeldVersion,
    drain_plan,
)

RESIDENT, LOADING, CACHED, LOST = SlotState.RESIDENT, SlotState.LOADING, SlotState.CACHED, SlotState.LOST


def version(name: str, rank: int = 8) -> Version:
    return Version(f"t/{name}", 1, "sha256:0", name, f"/x/{name}", "base", rank, 1, "/src", 0)


def engine(name: str, *held: str | tuple[str, HeldVersion], slots: int = 2, **more) -> EngineSnapshot:
    """Names are resident, each used a second before the one before."""
    found = dict(
        entry if isinstance(entry, tuple) else (entry, HeldVersion(RESIDENT, float(age)))
        for age, entry in enumerate(held)
    )
    document = Engine(name, f"http://{name}", "base", "h100", slots=slots, max_rank=8)
    return EngineSnapshot(document, found, **more)


def plan(leaving: EngineSnapshot, *others: EngineSnapshot, **more):
    ranks = more.pop("ranks", {})
    names = {name for snapshot in (leaving, *others) for name in snapshot.held}
    versions = {name: version(name, ranks.get(name, 8)) for name in names}
    return drain_plan(DrainSnapshot(leaving, others, **{"versions": versions} | more))


def moves(found) -> list[tuple[str, str, str | None]]:
    return [(move.version.engine_name, move.to, move.replaces) for move in found.moves]


def stays(found) -> dict[str, str]:
    return {version.engine_name: reason for version, reason in found.stays}


def test_the_hottest_goes_first_and_free_slots_are_filled_evenly():
    found = plan(engine("a", "hot", "warm", "cool", slots=3), engine("b"), engine("c", "x"))
    assert moves(found) == [("hot", "b", None), ("warm", "c", None), ("cool", "b", None)]
    assert found.elsewhere == found.stays == ()


def test_what_runs_counts_as_hottest():
    found = plan(engine("a", "used", ("running", HeldVersion(RESIDENT, 500.0, 2))), engine("b", slots=1))
    assert moves(found) == [("running", "b", None)]
    assert stays(found) == {"used": "b: its slots are pinned, in use, or used more recently"}


def test_what_another_engine_holds_is_not_loaded_again():
    found = plan(engine("a", "x", "y"), engine("b", "x"))
    assert moves(found) == [("y", "b", None)]
    assert [(v.engine_name, on) for v, on in found.elsewhere] == [("x", ("b",))]


def test_a_holder_that_does_not_serve_does_not_count():
    found = plan(engine("a", "x"), engine("b", "x", serves=False, closed="draining"))
    assert stays(found) == {"x": "b: draining"}


def test_a_load_in_progress_elsewhere_is_joined():
    assert moves(plan(engine("a", "x"), engine("b", ("x", HeldVersion(LOADING, 0))))) == [("x", "b", None)]


def test_the_longest_idle_version_gives_way_and_only_to_a_hotter_one():
    other = engine("b", ("cold", HeldVersion(RESIDENT, 90.0)), ("cool", HeldVersion(RESIDENT, 30.0)))
    found = plan(engine("a", "hot", ("mild", HeldVersion(RESIDENT, 60.0))), other)
    assert moves(found) == [("hot", "b", "cold")]
    assert stays(found).keys() == {"mild"}


@pytest.mark.parametrize(
    "held", [HeldVersion(RESIDENT, 90.0, 1), HeldVersion(LOADING, 90.0)], ids=["in flight", "loading"]
)
def test_what_is_busy_does_not_give_way(held):
    assert moves(plan(engine("a", "hot"), engine("b", ("busy", held), slots=1))) == []


def test_a_pinned_version_moves_however_idle_and_never_gives_way():
    old = HeldVersion(RESIDENT, 2 * RECENT_SECONDS)
    pinned = frozenset({"pin", "fixed"})
    assert moves(plan(engine("a", ("pin", old)), engine("b"), pinned=pinned)) == [("pin", "b", None)]
    assert moves(plan(engine("a", "x"), engine("b", ("fixed", old), slots=1), pinned=pinned)) == []


def test_a_version_that_nobody_calls_is_left():
    found = plan(
        engine("a", ("old", HeldVersion(RESIDENT, 7200.0)), ("lost", HeldVersion(LOST, 0))), engine("b")
    )
    assert moves(found) == []
    assert stays(found) == {
        "old": "idle for 2 h; loads elsewhere when called",
        "lost": "lost in a restart; loads elsewhere when called",
    }


def test_a_cached_version_moves_and_takes_no_slot_elsewhere():
    cached = ("c", HeldVersion(CACHED, 5.0))
    assert moves(plan(engine("a", cached), engine("b", ("d", HeldVersion(CACHED, 1.0)), slots=1))) == [
        ("c", "b", None)
    ]


def test_a_version_gets_the_slot_back_that_it_lost_in_a_restart():
    full = engine("b", ("x", HeldVersion(LOST, 90.0)), "y")
    assert moves(plan(engine("a", "x"), engine("c", "y"), full)) == [("x", "b", None)]


def test_every_reason_is_named():
    found = plan(
        engine("a", "x"), engine("b", closed="cordoned"), engine("c"), engine("d"), engine("e", slots=0),
        failed={("x", "d"): "refused"}, may_hold=lambda engine, _: engine.name != "e",
        ranks={"x": 16},
    )  # fmt: skip
    assert stays(found)["x"] == (
        "b: cordoned; c: rank 16 exceeds its maximum of 8; d: rank 16 exceeds its maximum of 8; "
        "e: rank 16 exceeds its maximum of 8"
    )
    found = plan(
        engine("a", "x"), engine("d"), engine("e"),
        failed={("x", "d"): "refused"}, may_hold=lambda engine, _: engine.name != "e",
    )  # fmt: skip
    assert stays(found) == {"x": "d: refused; e: lacks a label that the tenant requires"}
    assert stays(plan(engine("a", "x"))) == {"x": "no other engine serves base"}


def test_an_engine_with_a_merged_version_takes_that_one_whatever_its_rank_and_no_other():
    leaving, other = engine("a", "x", "y"), engine("b", slots=1)
    merged = replace(other.engine, max_rank=1, serves=version("x").id, merged_as="x")
    planned = plan(leaving, replace(other, engine=merged))
    assert moves(planned) == [("x", "b", None)]
    assert stays(planned) == {"y": "b: serves only t/x@v1"}
    assert merged.replaces(replace(merged, name="c"))
    assert leaving.engine.replaces(merged)
    assert not merged.replaces(leaving.engine)


def test_what_cannot_be_called_any_more_is_in_no_part_of_the_plan():
    leaving = engine("a", "gone", "x")
    found = plan(leaving, engine("b"), versions={"x": version("x")})
    assert moves(found) == [("x", "b", None)]
    assert found.stays == ()
    assert replace(found, moves=()) == plan(leaving, engine("b"), versions={})
