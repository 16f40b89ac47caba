"""What a worker notes of keys and errors, and what it does while the store is away."""

from __future__ import annotations

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.activity import KEPT_ERRORS
from gateway.observability.request_context import RequestContext
from gateway.tenants import activity
from gateway.tenants.activity import Activity
from tests.doubles.memory_store import MemoryStore


class Watch:
    """Mutable: the time, Unix microseconds."""

    now = 1_795_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def seen(store: MemoryStore) -> Activity:
    return Activity(store, Watch())


def ended(error: str = "", *, tenant: str = "acme", key: str = "k1", n: int = 1) -> RequestContext:
    return RequestContext(f"req-{n}", tenant=tenant, key_id=key, adapter="acme/support@v1", error=error)


async def test_uses_and_errors_reach_other_workers(store, seen):
    seen.note(ended())
    seen.note(ended("engine_failed", n=2))
    seen.note(ended("model_not_found", tenant="bolt", key="k2", n=3))
    seen.used("k3")
    await seen.report()
    other = Activity(store, Watch())
    uses = await other.last_uses(["k1", "k2", "k3", "k4"])
    assert uses.keys() == {"k1", "k2", "k3"}
    assert await other.last_errors("acme") == [
        {
            "failed_at": Watch.now + 3,
            "code": "engine_failed",
            "status": 502,
            "request_id": "req-2",
            "adapter": "acme/support@v1",
            "key": "k1",
        }
    ]
    assert [e["request_id"] for e in await other.last_errors("bolt")] == ["req-3"]


@pytest.mark.parametrize("code", ["revoked_api_key", "expired_api_key", "tenant_suspended"])
async def test_a_refused_key_was_not_used_but_its_owner_sees_the_error(seen, code):
    seen.note(ended(code))
    assert await seen.last_uses(["k1"]) == {}
    assert [e["code"] for e in await seen.last_errors("acme")] == [code]


async def test_a_caller_without_a_known_key_leaves_nothing(store, seen):
    seen.note(RequestContext("req-1", error="invalid_api_key"))
    await seen.report()
    assert (await store.last_uses([""]), await store.last_errors("")) == ({}, [])


async def test_reports_wait_for_the_store_and_are_sent_once(store, seen):
    store.away = True
    seen.note(ended("engine_failed"))
    with pytest.raises(StoreUnavailableError):
        await seen.report()
    assert (await seen.last_uses(["k1"])).keys() == {"k1"}, "this worker's own are shown meanwhile"
    assert [e["request_id"] for e in await seen.last_errors("acme")] == ["req-1"]
    seen.note(ended("engine_failed", n=2))
    store.away = False
    for _ in range(2):
        assert [e["request_id"] for e in await seen.last_errors("acme")] == ["req-2", "req-1"]


async def test_what_waits_is_bounded(store, seen, monkeypatch):
    monkeypatch.setattr(activity, "MAX_PENDING", 120)
    store.away = True
    for n in range(1000):
        seen.note(ended("engine_failed", tenant=f"t{n // 100}", n=n))
        if n % 300 == 0:
            with pytest.raises(StoreUnavailableError):
                await seen.report()
    kept = [len(await seen.last_errors(f"t{n}")) for n in range(10)]
    assert max(kept) == KEPT_ERRORS
    assert sum(kept) <= 120


async def test_a_report_that_came_twice_is_shown_once(store, seen):
    seen.note(ended("engine_failed"))
    await seen.report()
    texts = await store.last_errors("acme")
    await store.report_activity({}, {"acme": texts})
    assert len(await seen.last_errors("acme")) == 1
    store.away = True
    await seen.report()  # nothing happened


async def test_a_request_is_found_by_its_id_alone(store, seen, monkeypatch):
    monkeypatch.setattr(activity, "_TENANTS", 2)
    tenants = [f"t{n}" for n in range(5)]
    for n, tenant in enumerate(tenants):
        seen.note(ended("rate_limit_exceeded", tenant=tenant, n=n))
    found = await seen.find_error("req-3", tenants)
    assert (found["tenant"], found["code"], found["request_id"]) == ("t3", "rate_limit_exceeded", "req-3")
    assert await Activity(store, Watch()).find_error("req-3", tenants) == found, "on another worker"
    for absent in ("req-", "req-33", "t3", '"', ""):
        assert await seen.find_error(absent, tenants) is None
    assert await seen.find_error("req-3", ["t1", "t2"]) is None
    store.away = True
    assert await seen.find_error("req-3", tenants) is None
    seen.note(ended("engine_failed", tenant="t4", n=9))
    assert (await seen.find_error("req-9", tenants))["tenant"] == "t4", "this worker's own"


async def test_people_who_signed_in_are_no_keys(store, seen):
    for id_ in ("k1", "oidc:jane", "oidc@acme:joe"):
        seen.note(ended(key=id_))
    assert list(await seen.last_uses(["k1", "oidc:jane", "oidc@acme:joe"])) == ["k1"]
