"""Fills a store with tenants, keys and adapters, as their registration would, and changes them."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice

from adapters.model import Adapter, BaseModel, Engine, Fingerprint, ServingStatus, Version, dump
from adapters.store.protocol.registry import Change, RegistryStore
from gateway.tenants import directory
from gateway.tenants.directory import Key, Role, Tenant

BASE = "meta-llama/Llama-3.1-8B-Instruct"
ENGINE = "mock-1"
SLOTS = 16
KEYS_PER_TENANT = 2
COMMIT = 1_000
"""Documents per commit."""


@dataclass(slots=True)
class Registry:
    """What was put into the store. `customers`: adapter and key of those that will make requests."""

    tenants: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    adapters: list[Adapter] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    customers: list[tuple[str, str]] = field(default_factory=list)


async def fill(
    store: RegistryStore, adapters: int, tenants: int, engine_url: str, customers: int = SLOTS
) -> Registry:
    """Write a registry with one engine of SLOTS slots. `customers`: how many adapters will be called."""
    registry = Registry()
    documents = _documents(registry, adapters, tenants, engine_url, customers)
    while batch := list(islice(documents, COMMIT)):
        await store.commit(batch)
    return registry


def _documents(
    registry: Registry, adapters: int, tenants: int, engine_url: str, customers: int
) -> Iterator[Change]:
    now = time.time_ns() // 1000
    yield Change("base", BASE, dump(BaseModel(BASE)))
    engine = Engine(ENGINE, engine_url, BASE, "mock", slots=SLOTS, max_rank=64, registered=now)
    yield Change("engine", ENGINE, dump(engine))
    texts: dict[str, str] = {}
    for number in range(tenants):
        name = f"customer-{number:04}"
        registry.tenants.append(name)
        yield Change("tenant", name, directory.dump(Tenant(name, base_access=False, created=now)))
        for _ in range(KEYS_PER_TENANT):
            key, texts[name] = directory.mint(name, Role.TENANT, now)
            registry.keys.append(key)
            yield Change("key", key.id, directory.dump(key))
    for number in range(adapters):
        tenant = registry.tenants[number % tenants]
        version = _version(f"{tenant}/assistant-{number}", 1, now)
        adapter = Adapter(version.adapter, live=1, latest=1)
        registry.versions.append(version)
        registry.adapters.append(adapter)
        if number < customers:
            registry.customers.append((f"assistant-{number}", texts[tenant]))
        else:  # the gateway takes the fingerprints of those that it loads
            yield Change("fingerprint", version.engine_name, dump(_fingerprint(now)))
        yield Change("version", version.id, dump(version))
        yield Change("adapter", adapter.name, dump(adapter))


def _version(adapter: str, number: int, now: int) -> Version:
    digest = secrets.token_hex(32)
    return Version(
        adapter=adapter,
        number=number,
        digest=f"sha256:{digest}",
        engine_name=f"fl-{secrets.token_hex(10)}",
        path=f"/var/lib/florin/artifacts/sha256/{digest[:2]}/{digest}",
        base_model=BASE,
        rank=16,
        size_bytes=83_910_000 + random.randrange(10_000),
        source=f"s3://adapters.example/{adapter}/{number}",
        created=now,
    )


def _fingerprint(now: int) -> Fingerprint:
    return Fingerprint(
        prompt="6f1e24a1",
        text=secrets.token_hex(60),
        logprobs=tuple(round(-5 * random.random(), 6) for _ in range(15)),
        engine=ENGINE,
        gpu_type="mock",
        taken=now,
    )


def changes(registry: Registry) -> Iterator[list[Change]]:
    """Endless small commits, of one or two documents, as operators and pipelines make them. Adapters that
    requests use keep their versions."""
    now = time.time_ns() // 1000
    for number in count():
        called = len(registry.customers)
        index = called + number % (len(registry.adapters) - called)
        adapter, version = registry.adapters[index], registry.versions[index]
        match number % 5:
            case 0:  # a new version, and live
                version = _version(adapter.name, adapter.latest + 1, now)
                adapter = replace(adapter, live=version.number, latest=version.number)
                yield [
                    Change("version", version.id, dump(version)),
                    Change("adapter", adapter.name, dump(adapter)),
                ]
            case 1:  # pinned or not
                adapter = replace(adapter, pinned=not adapter.pinned)
                yield [Change("adapter", adapter.name, dump(adapter))]
            case 2:  # a key, revoked or valid again
                place = number * KEYS_PER_TENANT % len(registry.keys)  # customers use their tenants' last
                key = registry.keys[place]
                registry.keys[place] = key = replace(key, revoked=None if key.revoked else now)
                yield [Change("key", key.id, directory.dump(key))]
            case 3:  # a tenant
                name = registry.tenants[number % len(registry.tenants)]
                tenant = Tenant(name, base_access=number % 2 == 0, created=now)
                yield [Change("tenant", name, directory.dump(tenant))]
            case 4:  # a failed load, or a load after it
                status = ServingStatus("failed", version.id, "load_failed", "It failed.", ENGINE, now)
                failed = dump(status) if number % 2 else None
                yield [Change("serving_status", version.engine_name, failed)]
        registry.adapters[index], registry.versions[index] = adapter, version
