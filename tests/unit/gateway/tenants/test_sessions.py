"""Sessions of the console and the links that begin one."""

from __future__ import annotations

import pytest

from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, Role, dump, mint
from gateway.tenants.sessions import Sessions

MINUTE = 60_000_000


class Store:
    """A `SessionStore` in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[str, int]] = {}

    async def put_session(self, digest: str, text: str, *, ttl_ms: int) -> None:
        self.texts[digest] = text, ttl_ms

    async def session(self, digest: str) -> str | None:
        found = self.texts.get(digest)
        return found[0] if found else None

    async def take_session(self, digest: str) -> str | None:
        found = self.texts.pop(digest, None)
        return found[0] if found else None


class Time:
    now = 1_000 * MINUTE

    def micros(self) -> int:
        return self.now

    def seconds(self) -> float:
        return self.now / 1e6


def sessions(*keys: Key) -> tuple[Sessions, Store, Time]:
    directory, store, time = Directory("bootstrap-key"), Store(), Time()
    directory.load({"key": {key.id: dump(key) for key in keys}})
    return Sessions(store, directory, lifetime=3600, clock=time.micros, monotonic=time.seconds), store, time


async def test_a_link_is_followed_once_as_the_key_that_made_it():
    key, _ = mint("acme", Role.TENANT, 0)
    found, store, time = sessions(key)
    secret, expires = await found.link(key)
    assert expires == time.now + 10 * MINUTE
    ((text, ttl),) = store.texts.values()
    assert ttl == 600_000
    assert secret not in text
    assert secret not in store.texts  # whoever reads the store cannot use the link
    assert await found.find(secret) is None  # it is no session
    assert await found.follow(secret + "x") is None
    assert await found.follow(secret) == key
    assert await found.follow(secret) is None


async def test_a_sessions_secret_is_no_link():
    key, _ = mint("acme", Role.TENANT, 0)
    found, _, _ = sessions(key)
    secret, _ = await found.begin(key)
    assert await found.follow(secret) is None
    assert await found.find(secret) is not None


async def test_an_owner_begins_only_so_many_in_ten_minutes():
    one, _ = mint("acme", Role.TENANT, 0)
    two, _ = mint("acme", Role.TENANT_ADMIN, 0)
    other, _ = mint("bolt", Role.TENANT, 0)
    found, _, time = sessions(one, two, other)
    for n in range(200):
        await (found.link(one) if n % 2 else found.begin(two))
        time.now += 1_000_000
    with pytest.raises(FlorinError) as refused:  # whichever of its keys
        await found.begin(one)
    assert (refused.value.code, refused.value.retry_after) == ("rate_limit_exceeded", 401)
    await found.begin(other)  # others are not held up
    time.now += 401 * 1_000_000
    await found.begin(one)
