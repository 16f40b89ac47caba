"""Last uses and last errors: what every store must keep alike, and no more of it than it may."""

from __future__ import annotations

import asyncio

from adapters.store.protocol import activity
from adapters.store.protocol.activity import KEPT_ERRORS


async def test_the_latest_use_stays_whatever_order_reports_come_in(installation):
    await installation.store.report_activity({"k1": 5_000, "k2": 7_000}, {})
    await installation.other.report_activity({"k1": 6_000, "k2": 1_000}, {})
    await installation.store.report_activity({"k1": 2_000}, {})
    assert await installation.other.last_uses(["k2", "k1", "k9"]) == {"k1": 6_000, "k2": 7_000}
    assert await installation.store.last_uses([]) == {}


async def test_times_are_kept_to_the_microsecond(installation):
    at = 1_795_000_000_123_457
    await installation.store.report_activity({"k1": at}, {})
    assert await installation.store.last_uses(["k1"]) == {"k1": at}


async def test_of_more_keys_than_are_kept_the_latest_stay(installation, monkeypatch):
    for module in ("adapters.store.redis.activity", "tests.doubles.memory_activity"):
        monkeypatch.setattr(f"{module}.KEPT_USES", 10)
    for at in range(25):
        await installation.store.report_activity({f"k{at}": at + 1}, {})
    found = await installation.store.last_uses([f"k{n}" for n in range(25)])
    assert found == {f"k{n}": n + 1 for n in range(15, 25)}
    assert activity.KEPT_USES == 100_000


async def test_errors_are_each_owners_own_newest_first_and_bounded(installation):
    await installation.store.report_activity({}, {"acme": ["e1", "e2"], "bolt": ["b1"]})
    await installation.other.report_activity({}, {"acme": ["e3"]})
    assert await installation.store.last_errors("acme") == ["e3", "e2", "e1"]
    assert await installation.other.last_errors("bolt") == ["b1"]
    assert await installation.store.last_errors("corgi") == []
    many = [f"m{n}" for n in range(KEPT_ERRORS + 7)]
    await installation.store.report_activity({"k1": 1}, {"acme": many})
    newest = list(reversed(many))[:KEPT_ERRORS]
    assert await installation.store.last_errors("acme") == newest
    assert await installation.other.last_errors_of(["corgi", "acme", "bolt"]) == [[], newest, ["b1"]]
    assert await installation.store.last_errors_of([]) == []


async def test_counts_of_canaries_are_added_over_workers_and_kept_apart(installation):
    await installation.store.count_canaries({"a:1": (60_000, {"0 live n": 2, "0 canary n": 1})})
    await installation.other.count_canaries(
        {"a:1": (60_000, {"0 live n": 3}), "b:1": (60_000, {"0 live n": 9})}
    )
    assert await installation.other.canary_counts("a:1") == {"0 live n": 5, "0 canary n": 1}
    assert await installation.store.canary_counts("b:1") == {"0 live n": 9}
    assert await installation.store.canary_counts("c:1") == {}


async def test_a_session_is_read_by_all_ends_once_and_expires(installation):
    await installation.store.put_session("d1", "text", ttl_ms=60_000)
    await installation.store.put_session("d2", "short", ttl_ms=1)
    assert await installation.other.session("d1") == "text"
    assert await installation.other.session("d3") is None
    assert await installation.other.take_session("d1") == "text"
    assert await installation.store.take_session("d1") is None
    assert await installation.store.session("d1") is None
    installation.advance(10)  # the memory store's clock; Valkey has its own
    await asyncio.sleep(0.01)
    assert await installation.store.session("d2") is None
