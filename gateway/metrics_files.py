"""The metrics of several workers, which meet in files of a directory of theirs."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

_TRIES = 20
_TRY_SECONDS = 0.01


def render_all(directory: Path, engines: Collection[str]) -> bytes:
    """The text exposition of all workers together. `engines`: those that are registered."""
    for _ in range(_TRIES):
        with suppress(struct.error):  # a worker is just making its file: it is empty for a moment
            return _render(directory, engines)
        time.sleep(_TRY_SECONDS)
    return _render(directory, engines)


def _render(directory: Path, engines: Collection[str]) -> bytes:
    return generate_latest(_Present(all_of(directory), engines))


def all_of(directory: Path) -> CollectorRegistry:
    """Every worker's metrics, put together when they are collected."""
    clean_dead(directory)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]  # theirs
    return registry


class _Present(CollectorRegistry):
    """Without the gauges of engines that left: no alert should wait for their return."""

    def __init__(self, all_of_it: CollectorRegistry, engines: Collection[str]) -> None:
        super().__init__()
        self._all = all_of_it
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        for metric in self._all.collect():
            if metric.name in {"florin_engine_up", "florin_engine_hung"}:
                metric.samples = [s for s in metric.samples if s.labels["engine"] in self._engines]
            yield metric


def clean_dead(directory: Path) -> None:
    """Drop the gauges of workers that died, and files that they did not come to fill. Their counters stay, or
    the sums would run backwards."""
    for path in directory.glob("*_*.db"):
        pid = path.stem.rpartition("_")[2]
        with suppress(FileNotFoundError):
            empty = path.stat().st_size == 0
            if (empty or path.name.startswith("gauge_live")) and pid.isdigit() and not _alive(int(pid)):
                mark_process_dead(int(pid), str(directory))  # type: ignore[no-untyped-call]  # theirs
                if empty:
                    path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
