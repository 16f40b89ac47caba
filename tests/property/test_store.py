"""Any sequence of calls: the Lua scripts and their twin in Python decide alike, and the promises hold.

After every call, what the store shows is checked against what the test itself knows of the past: who holds
which lease until when, which load is whose.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from adapters.errors import ConflictError, FencedError
from adapters.model import Placement, SlotState, load
from adapters.store.protocol import Store
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.loads import Load, bit_of
from adapters.store.protocol.placement import ClaimResult, Touch
from adapters.store.protocol.registry import AuditNote, Change
from adapters.store.redis import RedisStore
from tests.doubles.memory_store import MemoryStore
from tests.support.search import examples
from tests.support.waiting import PATIENCE_S

ENGINES = ("e1", "e2", "e3")
SLOTS = {"e1": 1, "e2": 2, "e3": 2}
CPU_SLOTS = {"e1": 3, "e2": 4, "e3": 2}
VERSIONS = tuple(f"v{n}" for n in range(8))
MOST = {"v0": 1, "v1": 1, "v2": 2}
"""Maximum replicas."""
WORKERS = ("w1", "w2")

engines = st.sampled_from(ENGINES)
versions = st.sampled_from(VERSIONS)
workers = st.sampled_from(WORKERS)

claims = st.fixed_dictionaries(
    {
        "do": st.just("claim"),
        "version": versions,
        "engine": engines,
        "owner": workers,
        "ttl_ms": st.sampled_from((200, 4000, 8000)),
        "ignore": st.one_of(st.just([]), st.sets(engines, max_size=2).map(sorted)),
        "reload": st.sampled_from((False, False, False, False, True)),
        "replica": st.sampled_from((False, False, True)),
        "grace_ms": st.sampled_from((0, 300)),
    }
)
confirmations = st.sampled_from(("", 'http://e "p" 1'))
confirms = st.fixed_dictionaries(
    {
        "do": st.just("confirm"),
        "version": versions,
        "engine": engines,
        "owner": workers,
        "grace_ms": st.sampled_from((0, 300)),
        "verified": confirmations,
    }
)
abandons = st.fixed_dictionaries(
    {"do": st.just("abandon"), "version": versions, "engine": engines, "owner": workers}
)
touches = st.fixed_dictionaries(
    {
        "do": st.just("touch"),
        "worker": workers,
        "uses": st.lists(
            st.builds(
                Touch,
                engine=engines,
                version=versions,
                age_ms=st.integers(0, 300),
                in_flight=st.integers(0, 2),
            ),
            max_size=4,
        ),
        "ttl_ms": st.sampled_from((100, 1000, 5000)),
        "loads": st.dictionaries(
            engines, st.builds(Load, st.integers(1, 9), st.integers(0, 99), versions.map(bit_of)), max_size=2
        ),
    }
)
nths = st.integers(0, 5)
finishes = st.fixed_dictionaries(
    {
        "do": st.just("finish"),
        "nth": nths,
        "grace_ms": st.sampled_from((0, 0, 300)),
        "verified": confirmations,
        "well": st.integers(0, 9),
    }
)
usages = st.fixed_dictionaries(
    {"do": st.just("use"), "nth": nths, "worker": workers, "in_flight": st.sampled_from((0, 1, 1))}
)
pins = st.fixed_dictionaries({"do": st.just("pin"), "version": versions, "pinned": st.booleans()})
fences = st.none() | st.builds(Fence, st.just("r"), st.integers(0, 4))
edits = st.fixed_dictionaries(
    {
        "do": st.just("edit"),
        "id": versions,
        "data": st.sampled_from((None, "1", "2")),
        "expect": st.sampled_from(("any", None, "1")),
        "audit": st.none() | st.builds(AuditNote, workers, st.just("x.edit"), versions),
        "fence": fences,
    }
)
unplaces = st.fixed_dictionaries(
    {"do": st.just("unplace"), "engine": engines, "version": st.none() | versions, "fence": fences}
)
losses = st.fixed_dictionaries(
    {
        "do": st.just("lose"),
        "engine": engines,
        "versions": st.none() | st.lists(versions, max_size=3),
        "fence": fences,
    }
)
leads = st.fixed_dictionaries(
    {"do": st.just("lead"), "worker": workers, "ttl_ms": st.sampled_from((0, 100, 5000))}
)
trims = st.fixed_dictionaries(
    {"do": st.just("trim"), "nth": st.integers(0, 9), "keep": st.sampled_from((0, 1, 3))}
)
heartbeats = st.fixed_dictionaries(
    {"do": st.just("heartbeat"), "engine": engines, "ttl_ms": st.sampled_from((100, 2000))}
)
pauses = st.fixed_dictionaries({"do": st.just("wait"), "ms": st.sampled_from((0, 1, 99, 500, 1500, 5000))})
WEIGHTS = (
    *(10 * [claims]),
    *(6 * [finishes]),
    *(6 * [usages]),
    *(3 * [pauses]),
    *(2 * [losses]),
    *(confirms, abandons, touches, pins, edits, unplaces, leads, trims, heartbeats),
)
steps = st.integers(0, len(WEIGHTS) - 1).flatmap(lambda n: WEIGHTS[n])


async def perform(store: Store, step: dict) -> object:
    match step:
        case {"do": "claim", "version": version, "engine": engine, **how}:
            how |= {"slots": SLOTS[engine], "cpu_slots": CPU_SLOTS[engine], "max_replicas": MOST.get(version)}
            return await store.claim(version, engine, **how)
        case {"do": "confirm", "version": version, "engine": engine, **how}:
            return await store.confirm(version, engine, **how)
        case {"do": "abandon", "version": version, "engine": engine, "owner": owner}:
            return await store.abandon(version, engine, owner=owner)
        case {"do": "touch", "worker": worker, "uses": uses, **how}:
            return await store.touch(worker, uses, **how)
        case {"do": "pin", "version": version, "pinned": pinned}:
            return await store.commit([Change("pin", version, "{}" if pinned else None)])
        case {"do": "edit", "id": id_, "data": data, "expect": expect, **how}:
            changes = [Change("adapter", id_, data, expect), Change("key", id_, data)]
            return await refusable(store.commit(changes, **how))
        case {"do": "unplace", "engine": engine, "version": version, "fence": fence}:
            return await refusable(store.unplace(engine, version, fence=fence))
        case {"do": "lose", "engine": engine, "versions": lost, "fence": fence}:
            return await refusable(store.mark_lost(engine, lost, fence=fence))
        case {"do": "lead", "worker": worker, "ttl_ms": ttl_ms}:
            return await store.lead("r", worker, ttl_ms)
        case {"do": "trim", "nth": nth, "keep": keep}:
            entries = await store.audit()
            return entries and await store.trim_audit(entries[nth % len(entries)].id, keep=keep)
        case {"do": "heartbeat", "engine": engine, "ttl_ms": ttl_ms}:
            return await store.heartbeat(engine, "{}", ttl_ms=ttl_ms)
        case {"do": "wait"}:
            return None
    raise AssertionError(step)


async def refusable(call: Awaitable[object]) -> object:
    try:
        return await call
    except ConflictError as error:
        return type(error), str(error)


def concrete(step: dict, past: Past) -> dict:
    """`finish` and `use` speak of what is there: drawn blindly, they would seldom hit anything."""
    if step["do"] == "finish" and past.loads:
        (engine, version), (owner, _) = sorted(past.loads.items())[step["nth"] % len(past.loads)]
        place = {"version": version, "engine": engine, "owner": owner}
        if step["well"]:
            return {"do": "confirm", **place, "grace_ms": step["grace_ms"], "verified": step["verified"]}
        return {"do": "abandon", **place}
    if step["do"] == "use" and past.placed:
        engine, version = sorted(past.placed)[step["nth"] % len(past.placed)]
        use = Touch(engine, version, 0, step["in_flight"])
        return {"do": "touch", "worker": step["worker"], "uses": [use], "ttl_ms": 5000}
    return step if step["do"] not in ("finish", "use") else {"do": "wait", "ms": 1}


async def aside(store: Store) -> object:
    """What is in no snapshot."""
    entries = await store.audit()
    return entries, await store.audit(entries[0].id, count=2) if entries else [], await store.heartbeats()


async def uses(store: Store) -> list[tuple[object, dict[str, int]]]:
    """Per engine: its versions by recency, and their leases."""
    return [(list((await store.recency(e)).items()), await store.leases(e)) for e in ENGINES]


async def feed(store: Store, count: int) -> list[object]:
    watch, found = store.watch(0), []
    while len(found) < count:
        found += await anext(watch)
    await watch.aclose()
    return found


@dataclass
class Past:
    """What the promises speak of, kept by the test from the calls alone."""

    leases: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(engine, version, worker) → until."""
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The same → requests in flight, where it was said."""
    loads: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """(engine, version) → owner, until."""
    pinned: set[str] = field(default_factory=set)
    placed: set[tuple[str, str]] = field(default_factory=set)
    """(engine, version), in whatever state."""
    cached: set[tuple[str, str]] = field(default_factory=set)
    resident: set[tuple[str, str]] = field(default_factory=set)
    leaving: set[tuple[str, str]] = field(default_factory=set)
    lost: set[tuple[str, str]] = field(default_factory=set)
    role: tuple[int, int, str] = (0, 0, "")
    """Until when, token, holder."""

    def check(self, step: dict, answer: object, now: int, placements: dict[str, Placement]) -> None:
        after = {(p.engine, p.version) for p in placements.values()}
        cached = {(p.engine, p.version) for p in placements.values() if p.state is SlotState.CACHED}
        gone = self.placed - after
        evicted = (self.placed - self.cached) - (after - cached)
        """Without the slot that they had."""
        self._check_role(step, answer, now)
        match step["do"]:
            case "claim":
                self._check_eviction(step, evicted, now)
                assert {v for e, v in gone if e == step["engine"]} == set(answer.unload)
                if answer.result is ClaimResult.CLAIMED:
                    self._check_claim(step, now)
                elif answer.result is ClaimResult.ACTIVATED:
                    self._check_activation(step, now)
            case "confirm" | "abandon":
                owner, until = self.loads.get((step["engine"], step["version"]), (None, 0))
                assert answer == (owner == step["owner"] and until > now)
                if answer:
                    del self.loads[step["engine"], step["version"]]
                    if step.get("grace_ms"):
                        self.leases[step["engine"], step["version"], ""] = now + step["grace_ms"]
            case "touch":
                self._lease(step, now, after - cached)
            case "lose" if answer is None:
                lost = {p for p in self.placed if p[0] == step["engine"] and _among(p[1], step["versions"])}
                assert gone == lost & self.cached, "only what was cached goes with its process"
                gone = set()
                self.lost |= lost - self.cached
                self.loads = {place: load for place, load in self.loads.items() if place not in lost}
            case "pin":
                (self.pinned.add if step["pinned"] else self.pinned.discard)(step["version"])
        if step["do"] not in ("claim", "unplace", "abandon"):
            assert not gone, f"{step['do']} took {gone} away"
        self.placed, self.cached = after, cached
        self.lost &= after - cached
        shown = {(p.engine, p.version) for p in placements.values() if p.state is SlotState.LOST}
        assert shown == self.lost, "a process that is gone is believed in, or the other way round"
        self.loads = {place: load for place, load in self.loads.items() if place in after - cached}
        self.leases = {lease: until for lease, until in self.leases.items() if lease[:2] in after - cached}
        for engine, slots in SLOTS.items():
            assert sum(place[0] == engine for place in after - cached) <= slots, "more placements than slots"
            assert sum(place[0] == engine for place in after) <= CPU_SLOTS[engine], "more than its memory"
        self.resident = {
            (p.engine, p.version)
            for p in placements.values()
            if p.state is SlotState.RESIDENT or (p.state is SlotState.LEAVING and p.for_ms <= 0)
        }
        self.leaving = {(p.engine, p.version) for p in placements.values() if p.state is SlotState.LEAVING}

    def check_leases(self, shown: list[dict[str, int]], now: int) -> None:
        live = [lease for lease, until in self.leases.items() if until > now]
        for engine, leases in zip(ENGINES, shown, strict=True):
            known: Counter[str] = Counter()
            for lease in live:
                if lease[0] == engine:
                    known[lease[1]] += self.counts.get(lease, 1)
            assert leases == known, "a lease was lost, or outlived its time"

    def _check_eviction(self, step: dict, evicted: set[tuple[str, str]], now: int) -> None:
        for engine, version in evicted:
            _, loads_until = self.loads.get((engine, version), ("", 0))
            if engine != step["engine"]:
                assert engine in step["ignore"]
                assert version == step["version"]
                assert loads_until > now
                continue
            assert version not in self.pinned, "a pinned version was evicted"
            assert loads_until <= now, "a loading version was evicted"
            if (engine, version) in self.lost:
                continue  # nobody can use it
            live = [
                lease
                for lease, until in self.leases.items()
                if lease[:2] == (engine, version) and until > now
            ]
            assert not live, f"a leased version was evicted: {live}"

    def _lease(self, step: dict, now: int, placed: set[tuple[str, str]]) -> None:
        for use in step["uses"]:
            if (use.engine, use.version) in placed and use.in_flight:
                self.leases[use.engine, use.version, step["worker"]] = now + step["ttl_ms"]
                self.counts[use.engine, use.version, step["worker"]] = use.in_flight
            else:
                self.leases.pop((use.engine, use.version, step["worker"]), None)

    def _check_role(self, step: dict, answer: object, now: int) -> None:
        if step["do"] == "lead":
            self._check_lead(step, answer, now)
        if fence := step.get("fence"):
            _, token, holder = self.role
            stale = fence.token != token or not holder
            refused = isinstance(answer, tuple) and answer[0] is FencedError
            assert refused == stale, f"{fence} while the role is {self.role}"

    def _check_lead(self, step: dict, answer: object, now: int) -> None:
        until, token, holder = self.role
        if until > now and holder != step["worker"]:
            assert answer == 0, "two hold the role"
        elif step["ttl_ms"]:
            assert answer == token if holder == step["worker"] else answer > token
            self.role = (now + step["ttl_ms"], answer, step["worker"])
        elif holder == step["worker"]:
            self.role = (0, token, "")

    def _check_claim(self, step: dict, now: int) -> None:
        version, ignored = step["version"], set(step["ignore"]) - {step["engine"]}
        others = set(ENGINES) - ignored - {step["engine"]}
        loading = [e for e in others if self.loads.get((e, version), ("", 0))[1] > now]
        holders = [e for e in others if (e, version) in self.resident]
        assert len(loading) < max(1, len(holders)), "more loads at once than holders"
        if (step["engine"], version) not in self.resident | self.leaving:  # loaded again where it is
            self._check_maximum(step, now)
        assert step["replica"] or step["reload"] or not holders, "a replica that nobody asked for"
        _, until = self.loads.get((step["engine"], version), ("", 0))
        assert until <= now, "two claims of one slot"
        self.lost.discard((step["engine"], version))
        self.loads[step["engine"], step["version"]] = (step["owner"], now + step["ttl_ms"])

    def _check_maximum(self, step: dict, now: int) -> None:
        version, ignored = step["version"], set(step["ignore"])
        here = {(e, version) for e in ENGINES if e != step["engine"] and e not in ignored}
        loading = {place for place in here if self.loads.get(place, ("", 0))[1] > now}
        count = len(here & (self.resident | self.leaving | loading))
        assert count < MOST.get(version, len(ENGINES)), "more replicas than its maximum"

    def _check_activation(self, step: dict, now: int) -> None:
        place = step["engine"], step["version"]
        assert place in self.cached, "activated without being cached"
        self._check_maximum(step, now)
        if step["grace_ms"]:
            self.leases[(*place, "")] = now + step["grace_ms"]


def _among(version: str, versions: list[str] | None) -> bool:
    return versions is None or version in versions


async def play(url: str, prefix: str, sequence: list[dict]) -> None:
    now = 1_700_000_000_000
    real = RedisStore(url, prefix=prefix, clock=lambda: now, timeout=PATIENCE_S)
    twin = MemoryStore(clock=lambda: now)
    past = Past()
    try:
        for number, drawn in enumerate(sequence):
            step = concrete(drawn, past)
            now += step.get("ms", 1)
            answer = await perform(real, step)
            assert answer == await perform(twin, step)
            snapshot = await real.snapshot()
            assert snapshot == await twin.snapshot()
            texts = snapshot.documents["placement"]
            past.check(step, answer, now, {id_: load(Placement, text) for id_, text in texts.items()})
            assert await aside(real) == await aside(twin)
            if number % 5 == 0:  # they are slow to ask for
                shown = await uses(real)
                assert shown == await uses(twin)
                past.check_leases([leases for _, leases in shown], now)
        assert await feed(real, snapshot.seq) == await feed(twin, snapshot.seq)
    finally:
        await real.close()


@pytest.mark.timeout(600)  # shrinking a failure takes its time
@examples(15, suppress=(HealthCheck.function_scoped_fixture,))
@given(sequence=st.lists(steps, min_size=30, max_size=80))
def test_the_scripts_and_their_twin_agree_and_keep_the_promises(valkey_url, fresh_prefix, sequence):
    asyncio.run(play(valkey_url, fresh_prefix(), sequence))
