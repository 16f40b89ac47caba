"""Claims, evictions, leases: what every store must decide alike."""

from __future__ import annotations

import asyncio

from adapters.model import Placement, SlotState, load
from adapters.store.protocol.loads import Load, bit_of
from adapters.store.protocol.placement import KEPT_MOVES, Claim, ClaimResult, Touch
from adapters.store.protocol.registry import Change

CLAIMED, ACTIVATED, RESIDENT, LOADING, FULL, PINNED = (
    ClaimResult.CLAIMED,
    ClaimResult.ACTIVATED,
    ClaimResult.RESIDENT,
    ClaimResult.LOADING,
    ClaimResult.FULL,
    ClaimResult.PINNED,
)


async def claim(store, version, engine="e1", *, slots=2, owner="w1", ttl=10_000, **more):
    return await store.claim(version, engine, slots=slots, owner=owner, ttl_ms=ttl, **more)


async def put(installation, *versions, engine="e1", slots=2, **more):
    """Resident, used one ms after another, leased by nobody."""
    for version in versions:
        assert (await claim(installation.store, version, engine, slots=slots, **more)).result is CLAIMED
        assert await installation.store.confirm(version, engine, owner="w1", grace_ms=0)
        installation.advance(1)


async def lease(installation, *versions, worker="w1", engine="e1", in_flight=1, ttl=1000):
    await installation.store.touch(worker, [Touch(engine, v, 0, in_flight) for v in versions], ttl_ms=ttl)


async def placements(installation):
    documents = (await installation.store.snapshot()).documents["placement"]
    found = {id_: load(Placement, text) for id_, text in documents.items()}
    assert all(id_ == placement.id for id_, placement in found.items())
    return {id_: placement.state for id_, placement in found.items()}


async def events(installation, after=0):
    watch = installation.store.watch(after)
    batch = await anext(watch)
    await watch.aclose()
    return [(e.id, e.data and load(Placement, e.data)) for e in batch]


async def test_a_free_slot_is_claimed_loaded_and_confirmed(installation):
    assert await claim(installation.store, "a", ttl=7000) == Claim(CLAIMED, "e1")
    assert await placements(installation) == {"e1/a": SlotState.LOADING}
    assert await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT}
    assert await events(installation) == [
        ("e1/a", Placement("e1", "a", SlotState.LOADING, "w1", 7000)),
        ("e1/a", Placement("e1", "a", SlotState.RESIDENT)),
    ]


async def test_of_many_concurrent_claims_one_wins(installation):
    stores = [installation.open() for _ in range(8)]
    claims = await asyncio.gather(
        *(
            claim(store, "a", f"e{n % 3}", owner=f"w{n}")
            for store, n in zip(stores * 4, range(32), strict=True)
        )
    )
    results = [c.result for c in claims]
    assert results.count(CLAIMED) == 1
    assert results.count(LOADING) == 31
    assert len({c.engine for c in claims}) == 1


async def test_concurrent_claims_of_many_versions_fill_the_slots_exactly(installation):
    stores = [installation.open() for _ in range(8)]
    claims = await asyncio.gather(*(claim(stores[n % 8], f"v{n}", slots=5, owner=f"w{n}") for n in range(24)))
    assert [c.result for c in claims].count(CLAIMED) == 5
    assert [c.result for c in claims].count(FULL) == 19
    assert len(await placements(installation)) == 5


async def test_the_least_recently_used_gives_way(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", in_flight=0)
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="b", unload=("b",))
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT, "e1/c": SlotState.LOADING}
    assert ("e1/b", None) in await events(installation)


async def test_pinned_leased_and_loading_stay(installation):
    await put(installation, "pinned", "leased", slots=4)
    await claim(installation.store, "loading", slots=4)
    await put(installation, "idle", slots=4)
    await installation.store.commit([Change("pin", "pinned", "{}")])
    await lease(installation, "leased")
    assert await claim(installation.store, "x", slots=4) == Claim(
        CLAIMED, "e1", victim="idle", unload=("idle",)
    )
    assert (await claim(installation.store, "y", slots=4)).result is FULL


async def test_all_pinned_says_so(installation):
    await put(installation, "a", "b")
    await installation.store.commit([Change("pin", "a", "{}"), Change("pin", "b", "{}")])
    assert await claim(installation.store, "c") == Claim(PINNED, "e1")
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.RESIDENT}
    await installation.store.commit([Change("pin", "b", None)])
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="b", unload=("b",))


async def test_a_pin_protects_the_last_holder_only(installation):
    await put(installation, "a", "b")
    await claim(installation.store, "a", "e2", replica=True)
    await installation.store.confirm("a", "e2", owner="w1", grace_ms=0)
    await installation.store.commit([Change("pin", "a", "{}"), Change("pin", "b", "{}")])
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="a", unload=("a",))
    assert await claim(installation.store, "d", "e2", slots=1) == Claim(PINNED, "e2")


async def test_a_full_engine_drains_its_least_recently_used(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", ttl=60_000)
    await lease(installation, "b", ttl=60_000)
    start = (await installation.store.snapshot()).seq
    assert await claim(installation.store, "c") == Claim(FULL, "e1")
    assert await events(installation, start) == [("e1/a", Placement("e1", "a", SlotState.LEAVING, "", 5000))]
    assert (await claim(installation.store, "c")).result is FULL, "one mark serves all who wait"
    assert (await installation.store.snapshot()).seq == start + 1

    await lease(installation, "a", in_flight=0)
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="a", unload=("a",))


async def test_the_one_that_leaves_goes_first_though_used_last(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", ttl=2000)
    await claim(installation.store, "c")
    installation.advance(1000)
    await lease(installation, "a", ttl=500)
    installation.advance(1500)
    assert list(await installation.store.recency("e1")) == ["a", "b"]
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="a", unload=("a",))


async def test_a_mark_is_renewed_for_those_who_ask_again(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", ttl=60_000)
    for _ in range(8):
        assert (await claim(installation.store, "c")).result is FULL
        installation.advance(900)
    assert (await placements(installation))["e1/a"] is SlotState.LEAVING
    assert len(await events(installation, 4)) == 8
    text = (await installation.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).for_ms == 5000 - 900


async def test_a_leaving_version_does_not_take_its_slot_back_from_one_who_waits(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", ttl=60_000)
    await claim(installation.store, "c")
    assert await claim(installation.store, "a") == Claim(FULL, "e1")
    installation.advance(1499)
    assert await claim(installation.store, "a") == Claim(FULL, "e1")
    installation.advance(1)
    assert await claim(installation.store, "a") == Claim(RESIDENT, "e1"), "nobody asks any more"
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.RESIDENT}


async def test_a_mark_that_lapsed_is_residency(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", ttl=60_000)
    await claim(installation.store, "c")
    installation.advance(5000)
    assert await claim(installation.store, "a", "e2") == Claim(RESIDENT, "e1")
    assert await claim(installation.store, "a") == Claim(RESIDENT, "e1")


async def test_a_lapsed_claim_is_taken_over_and_its_owner_fenced_off(installation):
    await claim(installation.store, "a", owner="slow", ttl=1000)
    installation.advance(999)
    assert await claim(installation.other, "a", owner="quick") == Claim(LOADING, "e1")
    installation.advance(1)
    assert await claim(installation.other, "a", owner="quick", ttl=1000) == Claim(CLAIMED, "e1")
    assert not await installation.store.confirm("a", "e1", owner="slow", grace_ms=0)
    assert not await installation.store.abandon("a", "e1", owner="slow")
    assert await placements(installation) == {"e1/a": SlotState.LOADING}
    assert await installation.other.confirm("a", "e1", owner="quick", grace_ms=0)
    assert not await installation.other.abandon("a", "e1", owner="quick")


async def test_what_only_a_dead_engine_has_is_claimed_anew(installation):
    await put(installation, "a")
    assert await claim(installation.store, "a", "e2", ignore=["e1"]) == Claim(CLAIMED, "e2")
    await installation.store.confirm("a", "e2", owner="w1", grace_ms=0)
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT, "e2/a": SlotState.RESIDENT}
    assert await claim(installation.store, "a", "e3", ignore=["e1"]) == Claim(RESIDENT, "e2")


async def test_a_load_on_a_dead_engine_is_overruled(installation):
    await claim(installation.store, "a", owner="w1")
    assert await claim(installation.other, "a", "e2", owner="w2", ignore=["e1", "e2"]) == Claim(CLAIMED, "e2")
    assert await placements(installation) == {"e2/a": SlotState.LOADING}
    assert not await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await installation.store.recency("e1") == {}


async def test_a_load_is_not_overruled_for_nothing(installation):
    await put(installation, "x", engine="e2", slots=1)
    await lease(installation, "x", engine="e2")
    await claim(installation.store, "a")
    assert (await claim(installation.other, "a", "e2", slots=1, owner="w2", ignore=["e1"])).result is FULL
    assert (await placements(installation))["e1/a"] is SlotState.LOADING


async def test_a_reload_waits_for_a_load_elsewhere(installation):
    await put(installation, "a")
    await claim(installation.store, "a", "e2", ignore=["e1"])
    assert await claim(installation.store, "a", reload=True) == Claim(LOADING, "e2")


async def test_confirm_leases_to_those_who_waited(installation):
    await claim(installation.store, "a", slots=1)
    await installation.store.confirm("a", "e1", owner="w1", grace_ms=300)
    assert await installation.store.leases("e1") == {"a": 1}
    assert (await claim(installation.store, "b", slots=1)).result is FULL
    installation.advance(300)
    assert await installation.store.leases("e1") == {}
    assert await claim(installation.store, "b", slots=1) == Claim(CLAIMED, "e1", victim="a", unload=("a",))


async def test_leases_count_every_workers_requests_are_renewed_and_lapse(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b", worker="w1")
    await lease(installation, "a", worker="w2", in_flight=17)
    store = installation.store
    assert await store.leases("e1") == {"a": 18, "b": 1}
    assert await store.use(["e1", "e2"]) == {
        "e1": (await store.recency("e1"), await store.leases("e1")),
        "e2": ({}, {}),
    }
    assert await store.use([]) == {}
    installation.advance(500)
    await lease(installation, "a", worker="w2", in_flight=33)
    assert await installation.store.leases("e1") == {"a": 34, "b": 1}
    installation.advance(500)
    assert await installation.store.leases("e1") == {"a": 33}
    assert (
        await claim(installation.store, "c", slots=2)
    ).victim == "b"  # lapsed leases are swept, others stay
    assert await installation.store.leases("e1") == {"a": 33}
    await lease(installation, "a", worker="w2")
    assert await installation.store.leases("e1") == {"a": 1}
    await lease(installation, "a", worker="w2", in_flight=0)
    assert await installation.store.leases("e1") == {}


async def test_touches_of_what_is_no_longer_placed_are_passed_over(installation):
    await put(installation, "a")
    uses = [Touch("e1", "gone", 0, 3), Touch("nowhere", "a", 0, 1), Touch("e1", "a", 0, 1)]
    await installation.store.touch("w1", uses, ttl_ms=1000)
    assert await installation.store.leases("e1") == {"a": 1}
    assert await installation.store.recency("nowhere") == {}
    assert await installation.store.leases("nowhere") == {}


async def test_workers_hear_of_each_others_requests(installation):
    one, other = installation.store, installation.other
    mine = {"e1": Load(3, 700, bit_of("a") | bit_of("b")), "e2": Load(1, 0, bit_of("a"))}
    assert (await one.touch("w1", [], ttl_ms=1000, loads=mine)).loads == {}
    assert (await other.touch("w2", [], ttl_ms=1000, loads={"e1": Load(2, 30, bit_of("b"))})).loads == mine
    third = (await one.touch("w3", [], ttl_ms=1000)).loads
    assert third == {"e1": Load(5, 730, bit_of("a") | bit_of("b")), "e2": Load(1, 0, bit_of("a"))}
    assert third["e1"].distinct(bit_of("b")) == 1
    assert (await one.touch("w1", [], ttl_ms=1000)).loads == {"e1": Load(2, 30, bit_of("b"))}, "w3 has none"
    assert (await other.touch("w2", [], ttl_ms=1000)).loads == {}, "nor has w1 any more"


async def test_requests_of_a_dead_worker_are_forgotten_with_its_leases(installation):
    await installation.store.touch("dead", [], ttl_ms=1000, loads={"e1": Load(1, 1, 1)})
    installation.advance(999)
    assert (await installation.other.touch("w2", [], ttl_ms=1000)).loads == {"e1": Load(1, 1, 1)}
    installation.advance(1)
    assert (await installation.other.touch("w2", [], ttl_ms=1000)).loads == {}


async def test_an_eviction_ends_no_lease_and_an_unplacement_ends_them(installation):
    await put(installation, "a", "b")
    await lease(installation, "a", "b")
    await installation.store.unplace("e1", "a")
    assert await installation.store.leases("e1") == {"b": 1}
    await installation.store.unplace("e1", "never-there")
    await installation.store.unplace("e1")
    assert await placements(installation) == {}
    assert await installation.store.leases("e1") == {}
    assert await claim(installation.store, "a", "e2") == Claim(CLAIMED, "e2")


async def test_an_engine_with_fewer_slots_than_before_comes_down_to_them(installation):
    await put(installation, "a", "b", "c", "d", slots=4)
    assert await claim(installation.store, "e", slots=2) == Claim(
        CLAIMED, "e1", victim="a", unload=("a", "b", "c")
    )
    assert set(await placements(installation)) == {"e1/d", "e1/e"}


async def test_a_version_whose_name_begins_alike_keeps_its_lease(installation):
    await put(installation, "v1", "v10")
    await lease(installation, "v1", "v10")
    await installation.store.unplace("e1", "v1")
    assert await installation.store.leases("e1") == {"v10": 1}


async def test_snapshot_shows_the_time_that_is_left(installation):
    await claim(installation.store, "a", ttl=4000)
    installation.advance(1000)
    text = (await installation.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text) == Placement("e1", "a", SlotState.LOADING, "w1", 3000)
    installation.advance(9000)
    text = (await installation.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).for_ms == 0


async def test_unusual_owner_names_are_preserved(installation):
    owner = 'host/7 "é" \\ \n | 雪'
    await claim(installation.store, "a", owner=owner)
    text = (await installation.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).owner == owner
    assert await installation.store.confirm("a", "e1", owner=owner, grace_ms=0)


async def test_a_lost_version_is_claimed_again_without_a_victim(installation):
    await put(installation, "a", "b")
    await installation.store.mark_lost("e1")
    await installation.store.mark_lost("e1")
    assert len(await events(installation)) == 6, "what is lost is not lost again"
    assert await claim(installation.store, "a") == Claim(CLAIMED, "e1")
    assert await claim(installation.store, "b", reload=True) == Claim(CLAIMED, "e1")
    assert await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await placements(installation) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.LOADING}


async def test_a_lost_replica_is_claimed_only_by_who_reloads_it(installation):
    await put(installation, "a", engine="e2")
    await claim(installation.store, "a", "e1", ignore=["e2"])
    await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    await installation.store.mark_lost("e1")
    assert await claim(installation.store, "a") == Claim(RESIDENT, "e2")
    assert await claim(installation.store, "a", reload=True) == Claim(CLAIMED, "e1")


async def test_a_load_into_a_process_that_is_gone_is_not_confirmed(installation):
    await claim(installation.store, "a", owner="w1")
    await installation.store.mark_lost("e1")
    assert not await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert not await installation.store.abandon("a", "e1", owner="w1")
    assert await placements(installation) == {"e1/a": SlotState.LOST}
    assert await claim(installation.other, "a", owner="w2") == Claim(CLAIMED, "e1")


async def test_the_lost_go_first_whoever_has_leased_them(installation):
    await put(installation, "idle", "a", slots=3)
    await put(installation, "b", slots=3)
    await lease(installation, "a", "b")
    await installation.store.mark_lost("e1", ["b", "a"])
    assert await claim(installation.store, "c", slots=3) == Claim(CLAIMED, "e1", victim="a", unload=("a",))
    assert await claim(installation.store, "d", slots=3) == Claim(CLAIMED, "e1", victim="b", unload=("b",))
    assert await claim(installation.store, "e", slots=3) == Claim(
        CLAIMED, "e1", victim="idle", unload=("idle",)
    )


async def test_a_lost_version_that_is_pinned_keeps_its_slot(installation):
    await put(installation, "a", "b")
    await installation.store.commit([Change("pin", "a", "{}"), Change("pin", "b", "{}")])
    await installation.store.mark_lost("e1")
    assert await claim(installation.store, "c") == Claim(PINNED, "e1")
    await installation.store.commit([Change("pin", "b", None)])
    assert await claim(installation.store, "c") == Claim(CLAIMED, "e1", victim="b", unload=("b",))


# -- two tiers


async def test_victim_stays_in_cpu_memory_while_there_is_room(installation):
    await put(installation, "a", "b", cpu_slots=3)
    start = (await installation.store.snapshot()).seq
    assert await claim(installation.store, "c", cpu_slots=3) == Claim(CLAIMED, "e1", victim="a")
    assert await events(installation, start) == [
        ("e1/a", Placement("e1", "a", SlotState.CACHED)),
        ("e1/c", Placement("e1", "c", SlotState.LOADING, "w1", 10_000)),
    ]
    assert list(await installation.store.recency("e1")) == ["c", "b", "a"]
    assert await installation.store.confirm("c", "e1", owner="w1", grace_ms=0)
    assert await claim(installation.store, "d", cpu_slots=3) == Claim(
        CLAIMED, "e1", victim="b", unload=("a",)
    )
    assert await placements(installation) == {
        "e1/b": SlotState.CACHED,
        "e1/c": SlotState.RESIDENT,
        "e1/d": SlotState.LOADING,
    }


async def test_cached_version_is_activated_without_a_load(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    assert await claim(installation.store, "a", cpu_slots=3, grace_ms=300) == Claim(
        ACTIVATED, "e1", victim="b"
    )
    assert await placements(installation) == {
        "e1/a": SlotState.RESIDENT,
        "e1/b": SlotState.CACHED,
        "e1/c": SlotState.RESIDENT,
    }
    assert await installation.store.leases("e1") == {"a": 1}
    assert await claim(installation.other, "a", cpu_slots=3, owner="w2") == Claim(RESIDENT, "e1")
    installation.advance(300)
    assert await installation.store.leases("e1") == {}


async def test_cached_version_is_no_holder(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    assert await claim(installation.store, "a", "e2") == Claim(CLAIMED, "e2")
    assert await claim(installation.other, "a", cpu_slots=3) == Claim(ACTIVATED, "e1", victim="b"), (
        "which is quicker than the load"
    )
    assert await claim(installation.other, "b", "e3") == Claim(CLAIMED, "e3")
    await installation.store.confirm("b", "e3", owner="w1", grace_ms=0)
    assert await claim(installation.store, "b", cpu_slots=3) == Claim(RESIDENT, "e3")


async def test_engine_that_forgot_a_cached_version_loads_it(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    assert await claim(installation.store, "a", cpu_slots=3, reload=True) == Claim(CLAIMED, "e1", victim="b")
    assert (await placements(installation))["e1/a"] is SlotState.LOADING


async def test_restart_empties_cpu_memory(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    await installation.store.mark_lost("e1", ["a"])
    assert await placements(installation) == {"e1/b": SlotState.RESIDENT, "e1/c": SlotState.RESIDENT}
    await put(installation, "d", cpu_slots=3)
    await installation.store.mark_lost("e1")
    assert await placements(installation) == {"e1/c": SlotState.LOST, "e1/d": SlotState.LOST}
    assert await claim(installation.store, "b", cpu_slots=3) == Claim(
        CLAIMED, "e1", victim="c", unload=("c",)
    ), "what is lost is in no memory"


async def test_lapsed_load_is_not_cached(installation):
    await put(installation, "a", slots=1, cpu_slots=3)
    await claim(installation.store, "b", slots=1, cpu_slots=3, ttl=1000)
    installation.advance(1000)
    assert await claim(installation.store, "c", slots=1, cpu_slots=3) == Claim(
        CLAIMED, "e1", victim="b", unload=("b",)
    )
    assert set(await placements(installation)) == {"e1/a", "e1/c"}


async def test_unplacement_reaches_cpu_memory(installation):
    await put(installation, "a", "b", "c", "d", cpu_slots=4)
    await installation.store.unplace("e1", "a")
    assert set(await placements(installation)) == {"e1/b", "e1/c", "e1/d"}
    await installation.store.unplace("e1")
    assert await placements(installation) == {}
    assert await installation.store.recency("e1") == {}


async def test_engine_with_less_memory_than_before_comes_down_to_it(installation):
    await put(installation, "a", "b", "c", "d", cpu_slots=4)
    assert await claim(installation.store, "b", cpu_slots=3) == Claim(
        ACTIVATED, "e1", victim="c", unload=("a",)
    )
    assert await claim(installation.store, "c") == Claim(ACTIVATED, "e1", victim="d", unload=("d",))


# -- replicas


async def test_replicas_at_most_double_at_a_time(installation):
    async def replicate(engine):
        return await claim(installation.store, "a", engine, replica=True)

    assert await replicate("e1") == Claim(CLAIMED, "e1")
    assert await replicate("e2") == Claim(LOADING, "e1"), "nobody holds it: one load"
    await installation.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await replicate("e2") == Claim(CLAIMED, "e2")
    assert await replicate("e3") == Claim(LOADING, "e2"), "one holds it: one load"
    await installation.store.confirm("a", "e2", owner="w1", grace_ms=0)
    assert await replicate("e3") == Claim(CLAIMED, "e3")
    assert await replicate("e4") == Claim(CLAIMED, "e4")
    assert await replicate("e5") == Claim(LOADING, "e3"), "two hold it: two loads"


async def test_activation_of_a_replica_waits_for_no_load(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    await put(installation, "a", engine="e2")
    await claim(installation.store, "a", "e3", replica=True)
    assert await claim(installation.store, "a", cpu_slots=3, replica=True) == Claim(
        ACTIVATED, "e1", victim="b"
    )


async def test_replicas_stay_within_their_maximum(installation):
    async def replicate(engine, most=2, **more):
        return await claim(installation.store, "a", engine, replica=True, max_replicas=most, **more)

    await put(installation, "a")
    assert await replicate("e2", most=1) == Claim(FULL, "e2")
    assert await replicate("e2") == Claim(CLAIMED, "e2")
    assert await replicate("e3") == Claim(LOADING, "e2"), "a load counts"
    await installation.store.confirm("a", "e2", owner="w1", grace_ms=0)
    assert await replicate("e3") == Claim(FULL, "e3")
    assert await replicate("e2", most=1) == Claim(RESIDENT, "e2"), "nothing is taken away"
    assert await claim(installation.store, "a", "e3", max_replicas=1) == Claim(RESIDENT, "e1")
    assert await replicate("e3", ignore=["e1"]) == Claim(CLAIMED, "e3"), "an ignored engine does not count"


async def test_of_many_concurrent_claims_as_many_win_as_there_may_be_replicas(installation):
    await put(installation, "a")
    await claim(installation.store, "a", "e2", replica=True)
    await installation.store.confirm("a", "e2", owner="w1", grace_ms=0)
    stores = [installation.open() for _ in range(8)]
    claims = await asyncio.gather(
        *(claim(s, "a", f"f{n}", replica=True, max_replicas=3) for n, s in enumerate(stores))
    )
    assert sorted(c.result for c in claims) == sorted([CLAIMED] + 7 * [LOADING])


async def test_a_cached_copy_is_activated_within_the_maximum_only(installation):
    await put(installation, "a", "b", "c", cpu_slots=3)
    await put(installation, "a", engine="e2", replica=True)
    again = {"cpu_slots": 3, "replica": True}
    assert await claim(installation.store, "a", **again, max_replicas=1) == Claim(FULL, "e1")
    assert (await claim(installation.store, "a", **again, max_replicas=2)).result is ACTIVATED


async def test_a_version_that_vacates_its_slot_counts_towards_the_maximum(installation):
    """Its requests run there until it has drained, and it may stay."""
    await put(installation, "a", "b")
    await lease(installation, "a", "b")
    assert await claim(installation.store, "c") == Claim(FULL, "e1")  # "a" must leave
    assert await claim(installation.store, "a", "e2", max_replicas=1) == Claim(FULL, "e2")
    assert await claim(installation.store, "a", "e2", max_replicas=2) == Claim(CLAIMED, "e2")


async def test_what_a_restart_lost_is_reloaded_within_the_maximum_only(installation):
    await put(installation, "a")
    await installation.store.mark_lost("e1")
    await put(installation, "a", engine="e2")
    again = {"reload": True, "max_replicas": 1}
    assert await claim(installation.store, "a", **again) == Claim(RESIDENT, "e2")
    assert await claim(installation.store, "a", "e2", **again) == Claim(CLAIMED, "e2")


# -- moves


async def test_the_latest_moves_are_kept_newest_first(installation):
    assert await installation.store.moves() == []
    for n in range(KEPT_MOVES + 3):
        await installation.store.record_move(str(n))
    assert await installation.other.moves() == [str(n) for n in range(KEPT_MOVES + 2, 2, -1)]
