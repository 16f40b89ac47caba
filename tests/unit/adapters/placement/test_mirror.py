from __future__ import annotations

from adapters.placement.mirror import Comparison, Mirror, Tier

GPU, CPU, DISK = Tier.GPU, Tier.CPU, Tier.DISK


def tiers(mirror: Mirror, names: str) -> list[Tier]:
    return [mirror.tier(name) for name in names]


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


def test_an_engine_that_tells_what_it_holds_is_believed():
    mirror = Mirror(1, 2)
    mirror.loaded("a")
    mirror.loaded("b")
    assert mirror.told({"b": True, "a": False}) == Comparison(2, 0, "unknown")
    assert mirror.told({"a": True}) == Comparison(0, 2, "unknown")
    assert tiers(mirror, "ab") == [GPU, DISK]
    assert mirror.evicted("b")
    mirror.loaded("c")
    assert tiers(mirror, "ac") == [CPU, GPU]


def test_what_is_evicted_is_known_of_names_from_before_the_mirror_began_if_the_engine_tells():
    mirror = Mirror(1, 2)
    assert not mirror.evicted("a")
    mirror.told({"b": True})
    assert mirror.evicted("a")
    assert not mirror.evicted("b")
    mirror.restarted()
    assert not mirror.evicted("a")


def unloaded(*after: dict[str, bool]) -> list[str]:
    """What the engine shows of its unloads, after `a` was unloaded beside `b`."""
    mirror = Mirror(4, 4)
    mirror.loaded("b")
    mirror.loaded("a")
    mirror.told({"a": True, "b": True})
    mirror.unloaded("a")
    return [mirror.told(resident).unloads for resident in after]


def test_an_engine_that_tells_shows_what_its_unloads_do():
    both, alone, other = {"a": True, "b": True}, {"b": True}, {"b": True, "c": True}
    assert unloaded(both, both, both) == ["unknown", "forgets", "unknown"]
    assert unloaded(both, alone) == ["unknown", "removes"]  # its metrics were behind
    assert unloaded(alone, alone) == ["removes", "unknown"]
    assert unloaded(other) == ["unknown"]  # evicted, perhaps
