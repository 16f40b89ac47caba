"""Claims, evictions, leases: what every store must decide alike."""

from __future__ import annotations

import asyncio

from adapters.model import Placement, SlotState, load
from adapters.store.protocol import Change, Claim, ClaimResult, Touch

CLAIMED, RESIDENT, LOADING, FULL, PINNED = (
    ClaimResult.CLAIMED,
    ClaimResult.RESIDENT,
    ClaimResult.LOADING,
    ClaimResult.FULL,
    ClaimResult.PINNED,
)


async def claim(store, version, engine="e1", *, slots=2, owner="w1", ttl=10_000, **more):
    return await store.claim(version, engine, slots=slots, owner=owner, ttl_ms=ttl, **more)


async def put(world, *versions, engine="e1", slots=2):
    """Resident, used one ms after another, leased by nobody."""
    for version in versions:
        assert (await claim(world.store, version, engine, slots=slots)).result is CLAIMED
        assert await world.store.confirm(version, engine, owner="w1", grace_ms=0)
        world.advance(1)


async def lease(world, *versions, worker="w1", engine="e1", in_flight=1, ttl=1000):
    await world.store.touch(worker, [Touch(engine, v, 0, in_flight) for v in versions], ttl_ms=ttl)


async def placements(world):
    documents = (await world.store.snapshot()).documents["placement"]
    found = {id_: load(Placement, text) for id_, text in documents.items()}
    assert all(id_ == placement.id for id_, placement in found.items())
    return {id_: placement.state for id_, placement in found.items()}


async def events(world, after=0):
    watch = world.store.watch(after)
    batch = await anext(watch)
    await watch.aclose()
    return [(e.id, e.data and load(Placement, e.data)) for e in batch]


async def test_a_free_slot_is_claimed_loaded_and_confirmed(world):
    assert await claim(world.store, "a", ttl=7000) == Claim(CLAIMED, "e1")
    assert await placements(world) == {"e1/a": SlotState.LOADING}
    assert await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await placements(world) == {"e1/a": SlotState.RESIDENT}
    assert await events(world) == [
        ("e1/a", Placement("e1", "a", SlotState.LOADING, "w1", 7000)),
        ("e1/a", Placement("e1", "a", SlotState.RESIDENT)),
    ]


async def test_what_is_resident_is_not_claimed_again(world):
    await put(world, "a")
    assert await claim(world.other, "a", owner="w2") == Claim(RESIDENT, "e1")
    assert await claim(world.other, "a", "e2", owner="w2") == Claim(RESIDENT, "e1")


async def test_one_loads_and_the_others_wait_on_every_engine(world):
    await claim(world.store, "a")
    assert await claim(world.other, "a", owner="w2") == Claim(LOADING, "e1")
    assert await claim(world.other, "a", "e2", owner="w2") == Claim(LOADING, "e1")


async def test_of_many_concurrent_claims_one_wins(world):
    stores = [world.open() for _ in range(8)]
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


async def test_concurrent_claims_of_many_versions_fill_the_slots_exactly(world):
    stores = [world.open() for _ in range(8)]
    claims = await asyncio.gather(*(claim(stores[n % 8], f"v{n}", slots=5, owner=f"w{n}") for n in range(24)))
    assert [c.result for c in claims].count(CLAIMED) == 5
    assert [c.result for c in claims].count(FULL) == 19
    assert len(await placements(world)) == 5


async def test_the_least_recently_used_gives_way(world):
    await put(world, "a", "b")
    await lease(world, "a", in_flight=0)
    assert await claim(world.store, "c") == Claim(CLAIMED, "e1", victim="b")
    assert await placements(world) == {"e1/a": SlotState.RESIDENT, "e1/c": SlotState.LOADING}
    assert ("e1/b", None) in await events(world)


async def test_age_of_a_touch_counts_and_never_goes_back(world):
    await put(world, "a", "b")
    world.advance(1000)
    await world.store.touch("w1", [Touch("e1", "a", 10, 0), Touch("e1", "b", 20, 0)], ttl_ms=1000)
    await world.store.touch("w2", [Touch("e1", "a", 500, 0)], ttl_ms=1000)
    assert list((await world.store.recency("e1")).items()) == [("a", 10), ("b", 20)]


async def test_pinned_leased_and_loading_stay(world):
    await put(world, "pinned", "leased", slots=4)
    await claim(world.store, "loading", slots=4)
    await put(world, "idle", slots=4)
    await world.store.commit([Change("pin", "pinned", "{}")])
    await lease(world, "leased")
    assert await claim(world.store, "x", slots=4) == Claim(CLAIMED, "e1", victim="idle")
    assert (await claim(world.store, "y", slots=4)).result is FULL


async def test_all_pinned_says_so(world):
    await put(world, "a", "b")
    await world.store.commit([Change("pin", "a", "{}"), Change("pin", "b", "{}")])
    assert await claim(world.store, "c") == Claim(PINNED, "e1")
    assert await placements(world) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.RESIDENT}
    await world.store.commit([Change("pin", "b", None)])
    assert await claim(world.store, "c") == Claim(CLAIMED, "e1", victim="b")


async def test_a_full_engine_drains_its_least_recently_used(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=60_000)
    await lease(world, "b", ttl=60_000)
    start = (await world.store.snapshot()).seq
    assert await claim(world.store, "c") == Claim(FULL, "e1")
    assert await events(world, start) == [("e1/a", Placement("e1", "a", SlotState.LEAVING, "", 5000))]
    assert (await claim(world.store, "c")).result is FULL, "one mark serves all who wait"
    assert (await world.store.snapshot()).seq == start + 1

    await lease(world, "a", in_flight=0)
    assert await claim(world.store, "c") == Claim(CLAIMED, "e1", victim="a")


async def test_the_one_that_leaves_goes_first_though_used_last(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=2000)
    await claim(world.store, "c")
    world.advance(1000)
    await lease(world, "a", ttl=500)
    world.advance(1500)
    assert list(await world.store.recency("e1")) == ["a", "b"]
    assert await claim(world.store, "c") == Claim(CLAIMED, "e1", victim="a")


async def test_a_mark_is_renewed_for_those_who_ask_again(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=60_000)
    for _ in range(8):
        assert (await claim(world.store, "c")).result is FULL
        world.advance(900)
    assert (await placements(world))["e1/a"] is SlotState.LEAVING
    assert len(await events(world, 4)) == 8
    text = (await world.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).for_ms == 5000 - 900


async def test_a_leaving_version_does_not_take_its_slot_back_from_one_who_waits(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=60_000)
    await claim(world.store, "c")
    assert await claim(world.store, "a") == Claim(FULL, "e1")
    world.advance(1499)
    assert await claim(world.store, "a") == Claim(FULL, "e1")
    world.advance(1)
    assert await claim(world.store, "a") == Claim(RESIDENT, "e1"), "nobody asks any more"
    assert await placements(world) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.RESIDENT}


async def test_a_leaving_version_may_go_to_another_engine(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=60_000)
    await claim(world.store, "c")
    assert await claim(world.store, "a", "e2") == Claim(CLAIMED, "e2")
    assert await claim(world.store, "a") == Claim(LOADING, "e2")


async def test_a_mark_that_lapsed_is_residency(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", ttl=60_000)
    await claim(world.store, "c")
    world.advance(5000)
    assert await claim(world.store, "a", "e2") == Claim(RESIDENT, "e1")
    assert await claim(world.store, "a") == Claim(RESIDENT, "e1")


async def test_a_lapsed_claim_is_taken_over_and_its_owner_fenced_off(world):
    await claim(world.store, "a", owner="slow", ttl=1000)
    world.advance(999)
    assert await claim(world.other, "a", owner="quick") == Claim(LOADING, "e1")
    world.advance(1)
    assert await claim(world.other, "a", owner="quick", ttl=1000) == Claim(CLAIMED, "e1")
    assert not await world.store.confirm("a", "e1", owner="slow", grace_ms=0)
    assert not await world.store.abandon("a", "e1", owner="slow")
    assert await placements(world) == {"e1/a": SlotState.LOADING}
    assert await world.other.confirm("a", "e1", owner="quick", grace_ms=0)
    assert not await world.other.abandon("a", "e1", owner="quick")


async def test_a_claim_that_lapsed_cannot_be_confirmed_even_if_nobody_took_it(world):
    await claim(world.store, "a", ttl=1000)
    world.advance(1000)
    assert not await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert not await world.store.abandon("a", "e1", owner="w1")


async def test_a_lapsed_claim_holds_nobody_up(world):
    await claim(world.store, "a", slots=1, ttl=1000)
    world.advance(1000)
    assert await claim(world.store, "a", "e2") == Claim(CLAIMED, "e2")
    assert await claim(world.store, "a", "e1") == Claim(LOADING, "e2")
    assert await claim(world.store, "b", slots=1) == Claim(CLAIMED, "e1", victim="a")
    assert set(await placements(world)) == {"e1/b", "e2/a"}


async def test_abandon_gives_the_slot_back(world):
    await claim(world.store, "a", slots=1)
    assert await world.store.abandon("a", "e1", owner="w1")
    assert await placements(world) == {}
    assert (await events(world))[-1] == ("e1/a", None)
    assert await claim(world.store, "b", slots=1) == Claim(CLAIMED, "e1")


async def test_what_only_a_dead_engine_has_is_claimed_anew(world):
    await put(world, "a")
    assert await claim(world.store, "a", "e2", ignore=["e1"]) == Claim(CLAIMED, "e2")
    await world.store.confirm("a", "e2", owner="w1", grace_ms=0)
    assert await placements(world) == {"e1/a": SlotState.RESIDENT, "e2/a": SlotState.RESIDENT}
    assert await claim(world.store, "a", "e3", ignore=["e1"]) == Claim(RESIDENT, "e2")


async def test_a_load_on_a_dead_engine_is_overruled(world):
    await claim(world.store, "a", owner="w1")
    assert await claim(world.other, "a", "e2", owner="w2", ignore=["e1", "e2"]) == Claim(CLAIMED, "e2")
    assert await placements(world) == {"e2/a": SlotState.LOADING}
    assert not await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await world.store.recency("e1") == {}


async def test_a_load_is_not_overruled_for_nothing(world):
    await put(world, "x", engine="e2", slots=1)
    await lease(world, "x", engine="e2")
    await claim(world.store, "a")
    assert (await claim(world.other, "a", "e2", slots=1, owner="w2", ignore=["e1"])).result is FULL
    assert (await placements(world))["e1/a"] is SlotState.LOADING


async def test_an_engine_that_forgot_loads_again_in_the_same_slot(world):
    await put(world, "a", "b")
    assert await claim(world.store, "a", reload=True) == Claim(CLAIMED, "e1")
    assert await claim(world.other, "a", reload=True, owner="w2") == Claim(LOADING, "e1")
    assert await placements(world) == {"e1/a": SlotState.LOADING, "e1/b": SlotState.RESIDENT}


async def test_a_reload_waits_for_a_load_elsewhere(world):
    await put(world, "a")
    await claim(world.store, "a", "e2", ignore=["e1"])
    assert await claim(world.store, "a", reload=True) == Claim(LOADING, "e2")


async def test_confirm_leases_to_those_who_waited(world):
    await claim(world.store, "a", slots=1)
    await world.store.confirm("a", "e1", owner="w1", grace_ms=300)
    assert await world.store.leases("e1") == {"a": 1}
    assert (await claim(world.store, "b", slots=1)).result is FULL
    world.advance(300)
    assert await world.store.leases("e1") == {}
    assert await claim(world.store, "b", slots=1) == Claim(CLAIMED, "e1", victim="a")


async def test_leases_count_every_workers_requests_are_renewed_and_lapse(world):
    await put(world, "a", "b")
    await lease(world, "a", "b", worker="w1")
    await lease(world, "a", worker="w2", in_flight=17)
    assert await world.store.leases("e1") == {"a": 18, "b": 1}
    world.advance(500)
    await lease(world, "a", worker="w2", in_flight=33)
    assert await world.store.leases("e1") == {"a": 34, "b": 1}
    world.advance(500)
    assert await world.store.leases("e1") == {"a": 33}
    assert (await claim(world.store, "c", slots=2)).victim == "b"  # lapsed leases are swept, others stay
    assert await world.store.leases("e1") == {"a": 33}
    await lease(world, "a", worker="w2")
    assert await world.store.leases("e1") == {"a": 1}
    await lease(world, "a", worker="w2", in_flight=0)
    assert await world.store.leases("e1") == {}


async def test_touches_of_what_is_no_longer_placed_are_passed_over(world):
    await put(world, "a")
    uses = [Touch("e1", "gone", 0, 3), Touch("nowhere", "a", 0, 1), Touch("e1", "a", 0, 1)]
    await world.store.touch("w1", uses, ttl_ms=1000)
    assert await world.store.leases("e1") == {"a": 1}
    assert await world.store.recency("nowhere") == {}
    assert await world.store.leases("nowhere") == {}


async def test_an_eviction_ends_no_lease_and_an_unplacement_ends_them(world):
    await put(world, "a", "b")
    await lease(world, "a", "b")
    await world.store.unplace("e1", "a")
    assert await world.store.leases("e1") == {"b": 1}
    await world.store.unplace("e1", "never-there")
    await world.store.unplace("e1")
    assert await placements(world) == {}
    assert await world.store.leases("e1") == {}
    assert await claim(world.store, "a", "e2") == Claim(CLAIMED, "e2")


async def test_an_engine_with_fewer_slots_than_before_comes_down_to_them(world):
    await put(world, "a", "b", "c", "d", slots=4)
    assert await claim(world.store, "e", slots=2) == Claim(CLAIMED, "e1", victim="a")
    assert set(await placements(world)) == {"e1/d", "e1/e"}


async def test_a_version_whose_name_begins_alike_keeps_its_lease(world):
    await put(world, "v1", "v10")
    await lease(world, "v1", "v10")
    await world.store.unplace("e1", "v1")
    assert await world.store.leases("e1") == {"v10": 1}


async def test_snapshot_shows_the_time_that_is_left(world):
    await claim(world.store, "a", ttl=4000)
    world.advance(1000)
    text = (await world.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text) == Placement("e1", "a", SlotState.LOADING, "w1", 3000)
    world.advance(9000)
    text = (await world.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).for_ms == 0


async def test_odd_owners_survive_the_journey(world):
    owner = 'host/7 "é" \\ \n | 雪'
    await claim(world.store, "a", owner=owner)
    text = (await world.store.snapshot()).documents["placement"]["e1/a"]
    assert load(Placement, text).owner == owner
    assert await world.store.confirm("a", "e1", owner=owner, grace_ms=0)


async def test_a_lost_version_is_nobodys_and_keeps_its_slot_and_recency(world):
    await put(world, "a", "b")
    aged = await world.store.recency("e1")
    await world.store.mark_lost("e1", ["a", "never-there"])
    assert await placements(world) == {"e1/a": SlotState.LOST, "e1/b": SlotState.RESIDENT}
    assert await world.store.recency("e1") == aged
    assert (await events(world))[-1] == ("e1/a", Placement("e1", "a", SlotState.LOST))
    assert await claim(world.store, "a", "e2") == Claim(CLAIMED, "e2"), "e1 is no holder"


async def test_a_lost_version_is_claimed_again_without_a_victim(world):
    await put(world, "a", "b")
    await world.store.mark_lost("e1")
    await world.store.mark_lost("e1")
    assert len(await events(world)) == 6, "what is lost is not lost again"
    assert await claim(world.store, "a") == Claim(CLAIMED, "e1")
    assert await claim(world.store, "b", reload=True) == Claim(CLAIMED, "e1")
    assert await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await placements(world) == {"e1/a": SlotState.RESIDENT, "e1/b": SlotState.LOADING}


async def test_a_lost_replica_is_claimed_only_by_who_reloads_it(world):
    await put(world, "a", engine="e2")
    await claim(world.store, "a", "e1", ignore=["e2"])
    await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    await world.store.mark_lost("e1")
    assert await claim(world.store, "a") == Claim(RESIDENT, "e2")
    assert await claim(world.store, "a", reload=True) == Claim(CLAIMED, "e1")


async def test_a_load_into_a_process_that_is_gone_is_not_confirmed(world):
    await claim(world.store, "a", owner="w1")
    await world.store.mark_lost("e1")
    assert not await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert not await world.store.abandon("a", "e1", owner="w1")
    assert await placements(world) == {"e1/a": SlotState.LOST}
    assert await claim(world.other, "a", owner="w2") == Claim(CLAIMED, "e1")


async def test_the_lost_go_first_whoever_has_leased_them(world):
    await put(world, "idle", "a", slots=3)
    await put(world, "b", slots=3)
    await lease(world, "a", "b")
    await world.store.mark_lost("e1", ["b", "a"])
    assert await claim(world.store, "c", slots=3) == Claim(CLAIMED, "e1", victim="a")
    assert await claim(world.store, "d", slots=3) == Claim(CLAIMED, "e1", victim="b")
    assert await claim(world.store, "e", slots=3) == Claim(CLAIMED, "e1", victim="idle")


async def test_a_lost_version_that_is_pinned_keeps_its_slot(world):
    await put(world, "a", "b")
    await world.store.commit([Change("pin", "a", "{}"), Change("pin", "b", "{}")])
    await world.store.mark_lost("e1")
    assert await claim(world.store, "c") == Claim(PINNED, "e1")
    await world.store.commit([Change("pin", "b", None)])
    assert await claim(world.store, "c") == Claim(CLAIMED, "e1", victim="b")


async def test_uses_of_a_lost_version_still_count(world):
    await put(world, "a", "b")
    await world.store.mark_lost("e1")
    world.advance(1000)
    await lease(world, "a")
    assert list(await world.store.recency("e1")) == ["a", "b"]
    await claim(world.store, "a")
    await world.store.confirm("a", "e1", owner="w1", grace_ms=0)
    assert await world.store.leases("e1") == {"a": 1}
