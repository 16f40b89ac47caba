"""Builds the jobs that send events, for the streams that have a receiver."""

from __future__ import annotations

import contextlib

from adapters.store.protocol.coordination import CoordinationStore
from gateway.composition.background import run_in_background
from gateway.composition.context import WorkerContext
from gateway.config import Settings
from gateway.event_streams.delivery import EventDelivery
from gateway.event_streams.receiver import Receiver
from gateway.event_streams.streams import StreamName
from gateway.event_streams.watch import EventWatch
from gateway.metering.ledger.ledger import Ledger, LedgerUnavailableError
from gateway.observability.conditions import Conditions


def receivers(settings: Settings) -> dict[StreamName, Receiver]:
    found: dict[StreamName, tuple[str, str]] = {
        "audit": (settings.audit_events_to, settings.audit_events_token),
        "usage": (settings.usage_events_to, settings.usage_events_token),
    }
    return {
        stream: Receiver(url, secrets=settings.events_secret, token=token)
        for stream, (url, token) in found.items()
        if url
    }


async def open_event_streams(
    context: WorkerContext, store: CoordinationStore, ledger: Ledger, conditions: Conditions
) -> None:
    """The streams begin now, unless the ledger is away."""
    settings, clock = context.settings, context.clock.now
    jobs = [
        EventDelivery(
            stream,
            f"florin/{settings.redis_prefix}",
            store,
            ledger,
            context.name,
            receiver,
            clock,
            context.metrics,
        )
        for stream, receiver in receivers(settings).items()
    ]
    if not jobs:
        return
    for job in jobs:
        with contextlib.suppress(LedgerUnavailableError):  # then with the first delivery
            await job.begin()
    watch = EventWatch([job.stream for job in jobs], ledger, clock, context.metrics)
    conditions.add(watch.conditions)
    run_in_background(context.stack, watch.run, *(job.run for job in jobs))
