"""The registry: the store that workers share, and this worker's view of it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from adapters.placement.placement_log import PlacementLog
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store import registry_format, snapshot_writer
from adapters.store.feed import Follower, View
from adapters.store.local_snapshot import LocalSnapshot
from adapters.store.redis import RedisStore
from adapters.store.snapshot_writer import SnapshotWriter
from gateway.composition.context import WorkerContext
from gateway.routing.engine_deaths import DeathTracker
from gateway.tenants.bootstrap_key import BootstrapKeyFile
from gateway.tenants.directory import Directory


@dataclass(frozen=True, slots=True)
class Registry:
    """The store, and the views that the change feed keeps current."""

    store: RedisStore
    directory: Directory
    bootstrap_key: BootstrapKeyFile | None
    """None: the key does not come from a file."""
    catalog: Catalog
    residency: Residency
    placement_log: PlacementLog
    deaths: DeathTracker
    hang_reports: DeathTracker
    follower: Follower
    saved: LocalSnapshot | None
    """The snapshot that an earlier process wrote to disk."""

    async def changed(self, seconds: float) -> None:
        """Wait for the next event of the change feed, at most this many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.follower.changed()

    def counts(self) -> dict[str, int]:
        return {
            "tenants": len(self.directory.tenants),
            "keys": sum(key.revoked is None for key in self.directory.keys.values()),
            "adapters": len(self.catalog.adapters),
        }


async def open_registry(context: WorkerContext) -> Registry:
    """Connect to the store. `follow` the registry afterwards."""
    settings, metrics, worker = context.settings, context.metrics, context.name
    store = RedisStore(settings.redis_url, prefix=settings.redis_prefix)
    context.stack.push_async_callback(store.close)
    store.observe = metrics.redis_call
    directory = Directory(settings.operator_key.get_secret_value(), context.clock.now)
    file = settings.operator_key_file
    bootstrap_key = BootstrapKeyFile(file, directory) if file else None
    directory.failed_keys.on_failure = context.metrics.failed_key
    catalog, residency = Catalog(), Residency()
    placement_log = PlacementLog(residency, catalog, context.clock.now)
    deaths = DeathTracker(store, worker, metrics.engine_death)
    hang_reports = DeathTracker(store, worker, lambda *_: None, hangs=True)
    saved = await asyncio.to_thread(snapshot_writer.read, settings.state_dir)
    views: list[View] = [directory, catalog, placement_log, residency, deaths, hang_reports]
    follower = Follower(store, views, saved.snapshot if saved else None)
    return Registry(
        store,
        directory,
        bootstrap_key,
        catalog,
        residency,
        placement_log,
        deaths,
        hang_reports,
        follower,
        saved,
    )


async def follow(context: WorkerContext, registry: Registry) -> tuple[SnapshotWriter, dict[str, str]]:
    """Follow the change feed, and keep a snapshot on disk. Returns its writer and the shared secrets. Raises
    RegistryTooNewError."""
    await registry_format.check(registry.store)  # before anything of it is read
    follower = registry.follower
    await follower.start()
    context.stack.push_async_callback(follower.close)
    if not follower.lost:
        await registry_format.mark(registry.store)
    secrets = await snapshot_writer.secrets_of(registry.store, follower, registry.saved)
    writer = SnapshotWriter(context.settings.state_dir, follower, secrets)
    context.stack.push_async_callback(writer.close)
    return writer, secrets
