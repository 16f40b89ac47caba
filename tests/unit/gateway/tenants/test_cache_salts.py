from __future__ import annotations

import hashlib
import hmac

from gateway.tenants.cache_salts import CacheSalts

OLD, NEW, NEWEST = b"a" * 32, b"b" * 32, b"c" * 32
OWNERS = [f"t{i}" for i in range(400)]


def test_tenants_take_up_a_new_secret_one_after_the_other_and_stay_with_it():
    now = [0.0]
    salts = CacheSalts(OLD, lambda: now[0])
    before = {o: salts.of(o) for o in OWNERS}
    assert before["t1"] == hmac.new(OLD, b"t1", hashlib.sha256).hexdigest()
    assert len(set(before.values())) == len(OWNERS)
    salts.rotate(OLD, 100)  # a reload of something else
    assert all(salts.of(o) == before[o] for o in OWNERS)

    salts.rotate(NEW, 100)
    after, shares = CacheSalts(NEW), []
    changed: set[str] = set()
    for now[0] in (0.0, 25.0, 50.0, 75.0, 100.0):
        current = {o for o in OWNERS if salts.of(o) != before[o]}
        assert all(salts.of(o) == after.of(o) for o in current)
        assert changed <= current  # nobody goes back
        changed = current
        shares.append(len(current) / len(OWNERS))
    assert shares[0] < 0.01
    assert 0.15 < shares[1] < 0.35
    assert 0.4 < shares[2] < 0.6
    assert shares[-1] == 1


def test_a_second_rotation_ends_the_first_and_none_need_take_time():
    now = [0.0]
    salts = CacheSalts(OLD, lambda: now[0])
    salts.rotate(NEW, 100)
    salts.rotate(NEWEST, 0)
    assert all(salts.of(o) == CacheSalts(NEWEST).of(o) for o in OWNERS)
