"""What an operator should know about a worker: the conditions it reports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

from adapters.registry.mass_removal import MassRemovalWatch
from adapters.store.feed import Follower
from adapters.store.snapshot_writer import SnapshotWriter
from gateway.composition.registry import Registry
from gateway.metering.meter import Meter
from gateway.observability.conditions import Condition, Conditions
from gateway.observability.process_metrics import ProcessValues
from gateway.runtime.worker_watch import crash_loop


class Reporting(Protocol):
    def conditions(self) -> Iterable[Condition]: ...


def worker_conditions(
    registry: Registry,
    snapshot_writer: SnapshotWriter,
    meter: Meter,
    process_values: ProcessValues | None,
    *parts: Reporting,
) -> Conditions:
    """`parts`: those that know their own conditions."""
    follower = registry.follower
    conditions = Conditions()
    conditions.when(lambda: not follower.connected and not follower.lost, "feed_lost")
    removals = MassRemovalWatch(registry.counts)
    conditions.add(partial(_registry_conditions, follower, snapshot_writer, removals))
    conditions.when(lambda: not meter.accepting, "usage_unrecorded")
    for part in parts:
        conditions.add(part.conditions)
    conditions.when(lambda: meter.behind, "ledger_behind")
    conditions.add(partial(_newer_logs, meter))
    conditions.when(lambda: meter.disk_slow, "disk_slow")
    if process_values is not None:
        conditions.when(partial(crash_loop, process_values.values), "workers_crash")
    return conditions


def _newer_logs(meter: Meter) -> Iterator[Condition]:
    for path in sorted(meter.newer_logs):
        yield Condition("usage_of_newer_version", path.name, f"{path} waits.")


def _registry_conditions(
    follower: Follower, snapshot_writer: SnapshotWriter, removals: MassRemovalWatch
) -> Iterator[Condition]:
    if follower.lost:
        yield Condition("registry_regressed", message=follower.lost)
    shrunk = removals.check(time.monotonic())
    if shrunk:
        yield Condition("registry_shrinking", message=shrunk)
    if snapshot_writer.trouble:
        yield Condition("registry_unkept", message=snapshot_writer.trouble)
