from __future__ import annotations

from adapters.placement.mirror import Mirror, Tier

GPU, CPU, DISK = Tier.GPU, Tier.CPU, Tier.DISK


def tiers(mirror: Mirror, names: str) -> list[Tier]:
    return [mirror.tier(name) for name in names]


def test_the_least_recently_used_go_to_cpu_memory_and_then_to_disk():
    mirror = Mirror(2, 3)
    for name in "abcd":
        mirror.loaded(name)
    assert tiers(mirror, "abcd") == [DISK, CPU, GPU, GPU]
    mirror.dispatched("a")
    assert tiers(mirror, "abcd") == [GPU, DISK, CPU, GPU]
    assert repr(mirror) == "<Mirror gpu=['d', 'a'] cpu=['c']>"


def test_a_load_takes_no_slot_from_what_is_running():
    mirror = Mirror(2, 4)
    mirror.dispatched("a")
    mirror.dispatched("b", {"a"})
    mirror.loaded("c", {"a", "b"})
    assert tiers(mirror, "abc") == [GPU, GPU, CPU]


def test_what_ran_last_stays_whenever_it_began():
    mirror = Mirror(2, 4)
    for name in "abc":
        mirror.loaded(name)
    mirror.dispatched("a")
    mirror.dispatched("b", {"a"})
    mirror.finished("b")
    mirror.finished("a")
    mirror.dispatched("c")
    assert tiers(mirror, "abc") == [GPU, CPU, GPU]


def test_a_reload_after_an_unload_is_a_second_copy_beside_the_first():
    mirror = Mirror(1, 3)
    mirror.loaded("a")
    mirror.loaded("a")  # refused: it is listed
    mirror.loaded("b")
    assert tiers(mirror, "ab") == [CPU, GPU]
    mirror.unloaded("b")
    assert mirror.tier("b") is DISK
    mirror.loaded("b")
    assert repr(mirror) == "<Mirror gpu=['b'] cpu=['a', 'b']>"
    mirror.loaded("c")
    assert tiers(mirror, "abc") == [DISK, CPU, GPU]  # the first copy of b has kept a out


def test_a_restart_empties_it():
    mirror = Mirror(1, 2)
    mirror.loaded("a")
    mirror.restarted()
    assert mirror.tier("a") is DISK
    assert repr(mirror) == "<Mirror gpu=[] cpu=[]>"
    mirror.loaded("a")
    assert mirror.tier("a") is GPU


def test_an_engine_without_a_cpu_tier_of_its_own():
    """vLLM's default: as many adapters in CPU memory as in slots."""
    mirror = Mirror(2, 0)
    for name in "abc":
        mirror.loaded(name)
    assert tiers(mirror, "abc") == [DISK, GPU, GPU]


def test_a_request_for_what_was_loaded_before_the_mirror_began_counts_as_its_load():
    mirror = Mirror(1, 1)
    mirror.dispatched("a", {"unknown"})
    assert mirror.tier("a") is GPU
