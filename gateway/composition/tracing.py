"""Opens the export of spans, if FLORIN_TRACES_TO is set."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from adapters.model import Engine, Version
from gateway.config import Settings
from gateway.observability import build_info
from gateway.observability.metrics import Metrics
from gateway.observability.tracing import Tracing


async def open_tracing(
    worker: str, settings: Settings, metrics: Metrics, stack: AsyncExitStack
) -> Tracing | None:
    if not settings.traces_to:
        return None
    # The SDK and its exporter take half a second to import and 20 MiB, so they are imported only if used.
    from gateway.observability.span_export import SpanExport  # noqa: PLC0415

    resource = {
        "service.name": "florin",
        "service.version": build_info.version(),
        "service.instance.id": worker,
        **({"vcs.ref.head.revision": commit} if (commit := build_info.commit()) else {}),
    }
    export = await asyncio.to_thread(SpanExport, settings.traces_to, resource, metrics.trace_spans)
    stack.push_async_callback(asyncio.to_thread, export.close)
    return Tracing(export.put, settings.trace_ratio, settings.trace_clients)


@dataclass(frozen=True, slots=True)
class LoadObservers:
    """Tells metrics and traces of loads: see `load_steps.LoadObserver`."""

    metrics: Metrics
    tracing: Tracing | None

    def adapter_load(self, engine: Engine, version: Version, result: str, seconds: float) -> None:
        self.metrics.adapter_load(engine.name, result, seconds)
        if self.tracing is not None:
            self.tracing.loaded(engine, version, result, seconds)

    def eviction(self, engine: str) -> None:
        self.metrics.eviction(engine)
