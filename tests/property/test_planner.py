"""The planner against a fleet that does as it says: constraints hold, slots suffice, and plans come to rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from adapters.model import SlotState
from adapters.placement.plan_draft import ON_GPU
from adapters.placement.planned_fleet import (
    FleetSnapshot,
    Move,
    PlacedVersion,
    PlanLimits,
    PlannedEngine,
    PlannedVersion,
)
from adapters.placement.planner import plan
from tests.support.search import examples

LIMITS = PlanLimits()
TICKS = 60
REGIONS = st.sampled_from(["eu", "us"])


@st.composite
def fleets(draw: st.DrawFn, *, calm: bool = False) -> FleetSnapshot:
    """`calm`: nothing is loading, in use or unavailable, as after a while without requests that load."""
    versions = []
    for n in range(draw(st.integers(1, 8))):
        least = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
        most = draw(st.sampled_from([None, None, 1, 2, 4]))
        versions.append(
            PlannedVersion(
                f"v{n}",
                rank=draw(st.sampled_from([8, 8, 16, 64])),
                requires={"region": draw(REGIONS)} if draw(st.integers(0, 3)) == 0 else {},
                min_replicas=least,
                max_replicas=None if most is None else max(1, least, most),
                pinned=draw(st.integers(0, 5)) == 0,
                release=draw(st.sampled_from([(0, 0), (0, 0), (0, 33)])),
            )
        )
    engines = []
    for n in range(draw(st.integers(1, 6))):
        slots = draw(st.integers(1, 4))
        here = draw(st.lists(st.sampled_from(versions), unique_by=lambda v: v.name, max_size=slots))
        engines.append(
            PlannedEngine(
                f"e{n}",
                slots=slots,
                max_rank=draw(st.sampled_from([16, 64])),
                release=draw(st.sampled_from([(0, 32), (0, 33)])),
                domain=draw(st.sampled_from(["h1", "h2", "h3"])),
                labels={"region": draw(REGIONS)},
                serves=calm or draw(st.integers(0, 5)) > 0,
                open=calm or draw(st.integers(0, 4)) > 0,
                requests=draw(st.sampled_from([0, 0, 10])),
                since_load=float("inf") if calm else draw(st.sampled_from([0.5, 1000.0])),
                weight=draw(st.sampled_from([1.0, 2.0])),
                held={v.name: draw(placed(calm=calm)) for v in here},
            )
        )
    return FleetSnapshot(tuple(engines), tuple(versions))


@st.composite
def placed(draw: st.DrawFn, *, calm: bool) -> PlacedVersion:
    idle = draw(st.sampled_from([0.0, 1.0, 100.0]))
    if calm:
        return PlacedVersion(SlotState.RESIDENT, idle=idle)
    return PlacedVersion(draw(st.sampled_from(list(SlotState))), leased=draw(st.booleans()), idle=idle)


def applied(fleet: FleetSnapshot, moves: tuple[Move, ...]) -> FleetSnapshot:
    """What the claims make of the moves, long enough afterwards for all loads to be over."""
    engines = {e.name: dict(e.held) for e in fleet.engines}
    versions = {v.name: v for v in fleet.versions}
    for move in moves:
        held = engines[move.engine]
        if move.kind == "drop":
            del held[move.version]
            continue
        slots = next(e.slots for e in fleet.engines if e.name == move.engine)
        if on_gpu(held) >= slots:
            victim = min(
                evictable(held, versions),
                key=lambda v: (held[v].state is not SlotState.LOST, -held[v].idle, v),
            )
            del held[victim]
        held[move.version] = PlacedVersion(SlotState.RESIDENT, idle=0.0)
    settled = (replace(e, held=engines[e.name], since_load=float("inf")) for e in fleet.engines)
    return replace(fleet, engines=tuple(settled))


def on_gpu(held: dict[str, PlacedVersion]) -> int:
    return sum(p.state in ON_GPU for p in held.values())


def evictable(held: dict[str, PlacedVersion], versions: dict[str, PlannedVersion]) -> list[str]:
    return [
        v
        for v, p in held.items()
        if p.state in ON_GPU and p.state is not SlotState.LOADING and not p.leased and not versions[v].pinned
    ]


def holders(fleet: FleetSnapshot, version: str) -> list[PlannedEngine]:
    return [e for e in fleet.engines if (p := e.held.get(version)) and p.state in ON_GPU]


@examples(100)
@given(fleets(), st.integers(0, 10))
def test_no_move_breaks_a_rule(fleet, most):
    moves = plan(fleet, replace(LIMITS, moves=most))
    assert len(moves) <= most
    assert moves == plan(
        replace(fleet, engines=fleet.engines[::-1], versions=fleet.versions[::-1]),
        replace(LIMITS, moves=most),
    )
    engines = {e.name: e for e in fleet.engines}
    versions = {v.name: v for v in fleet.versions}
    loads = [m.engine for m in moves if m.kind != "drop"]
    assert len(loads) == len(set(loads)), "one load per engine at a time"
    assert len({(m.engine, m.version) for m in moves}) == len(moves)
    for move in moves:
        engine, version = engines[move.engine], versions[move.version]
        here = engine.held.get(move.version)
        assert move.why
        if move.kind == "drop":
            assert here is not None
            assert not here.leased
            continue
        assert engine.open
        assert engine.serves
        assert all(engine.labels[label] == value for label, value in version.requires.items())
        assert version.rank <= engine.max_rank
        assert version.release <= engine.release
        assert here is None or here.state is SlotState.CACHED
        assert not any(p.state is SlotState.LOADING for p in engine.held.values())
        assert here is not None or engine.since_load * 1000 * LIMITS.stalled >= engine.load_ms
        drops = sum(1 for m in moves if m.kind == "drop" and m.engine == engine.name)
        free = engine.slots - on_gpu(dict(engine.held)) + drops
        assert free > 0 or (move.kind == "replicate" and evictable(dict(engine.held), versions))
    after = applied(fleet, moves)
    for engine in after.engines:
        before = on_gpu(dict(engines[engine.name].held))
        assert on_gpu(dict(engine.held)) <= max(engine.slots, before)
    for version in fleet.versions:
        if version.max_replicas is not None:
            grown = [m for m in moves if m.kind != "drop" and m.version == version.name]
            serving = [
                e
                for e in holders(after, version.name)
                if e.serves and e.held[version.name].state is not SlotState.LEAVING
            ]
            assert not grown or len(serving) <= version.max_replicas


def run(fleet: FleetSnapshot) -> tuple[FleetSnapshot, int]:
    """Until two plans in a row have no moves."""
    for tick in range(TICKS):
        moves = plan(fleet, LIMITS)
        if not moves:
            return fleet, tick
        fleet = applied(fleet, moves)
    raise AssertionError(f"still moving: {plan(fleet, LIMITS)}")


@examples(100)
@given(fleets(calm=True))
def test_plans_come_to_rest_where_every_rule_holds(fleet):
    fleet, ticks = run(fleet)
    event(f"{min(ticks, 10)} ticks")
    for version in fleet.versions:
        held = holders(fleet, version.name)
        assert all(e.labels[label] == value for e in held for label, value in version.requires.items())
        if version.max_replicas is not None:
            assert len(held) <= version.max_replicas
        able = [
            e
            for e in fleet.engines
            if version.rank <= e.max_rank
            and version.release <= e.release
            and all(e.labels[label] == value for label, value in version.requires.items())
        ]
        lacking = [e for e in able if version.name not in e.held and on_gpu(dict(e.held)) < e.slots]
        assert len(held) >= version.min_replicas or not lacking
        spread = {e.domain for e in held}
        if version.min_replicas > 1 and len(held) == version.min_replicas != version.max_replicas:
            assert len(spread) == len(held) or not {e.domain for e in lacking} - spread
