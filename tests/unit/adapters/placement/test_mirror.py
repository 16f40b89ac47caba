from __future__ import annotations

from adapters.placement.mirror import Mirror, Tier

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
