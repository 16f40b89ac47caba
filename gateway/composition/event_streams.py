"""Builds the jobs that send events, and replaces them when a reload names other receivers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

from gateway.composition.background import cancel_task, run_in_background
from gateway.composition.leader_jobs import LeaderJobs
from gateway.config import Settings
from gateway.event_streams.delivery import LONGEST_PAUSE, LOOK_SECONDS, EventDelivery
from gateway.event_streams.receiver import Receiver
from gateway.event_streams.streams import STREAMS, StreamName, begin
from gateway.event_streams.watch import EventWatch
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.conditions import Conditions


@dataclass(frozen=True, slots=True)
class Destination:
    url: str
    secrets: str
    token: str

    def receiver(self) -> Receiver:
        return Receiver(self.url, secrets=self.secrets, token=self.token)


def destinations(settings: Settings) -> dict[StreamName, Destination]:
    """The destination of each stream that has one."""
    audit, usage = settings.audit_events_to, settings.usage_events_to
    by_stream: dict[StreamName, Destination] = {
        "audit": Destination(audit, settings.events_secret, settings.audit_events_token),
        "usage": Destination(usage, settings.events_secret, settings.usage_events_token),
    }
    return {stream: destination for stream, destination in by_stream.items() if destination.url}


class EventStreams:
    """Mutable: where each stream goes. On the worker's event loop."""

    def __init__(self, jobs: LeaderJobs, ledger: Ledger) -> None:
        self._jobs = jobs
        self._context = context = jobs.context
        self._ledger = ledger
        self._destinations = destinations(context.settings)
        self._changed: dict[StreamName, asyncio.Event] = {stream: asyncio.Event() for stream in STREAMS}
        self.watch = EventWatch([*self._destinations], ledger, context.clock.now, context.metrics)

    def reconfigure(self, settings: Settings) -> None:
        """A stream without a receiver waits where it is, and goes on from there with its next one."""
        before, self._destinations = self._destinations, destinations(settings)
        self.watch.streams = [*self._destinations]
        for stream, changed in self._changed.items():
            if before.get(stream) != self._destinations.get(stream):
                changed.set()
            if stream in before and stream not in self._destinations:
                self._context.metrics.event_lag(stream, 0.0)

    async def begin(self) -> None:
        """The streams begin now, unless the ledger is away: then with the first delivery."""
        for stream in self._destinations:
            with contextlib.suppress(LedgerUnavailableError):
                await asyncio.to_thread(begin, self._ledger, stream, self._context.clock.now())

    async def deliver(self, stream: StreamName) -> None:
        """Run until cancelled."""
        changed = self._changed[stream]
        while True:
            changed.clear()
            destination = self._destinations.get(stream)
            if destination is None:
                await changed.wait()
                continue
            until = asyncio.create_task(changed.wait())
            delivery = asyncio.create_task(self._deliver_to(stream, destination))
            try:
                await asyncio.wait({until, delivery}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                until.cancel()
                await cancel_task(delivery)

    async def _deliver_to(self, stream: StreamName, destination: Destination) -> None:
        context, source = self._context, f"florin/{self._context.settings.redis_prefix}"
        async with destination.receiver() as receiver:
            delivery = EventDelivery(
                stream, source, self._ledger, receiver, context.clock.now, context.metrics
            )
            await self._jobs.make(
                *(f"{stream}-events", f"Delivery of {stream} events", delivery.step, LOOK_SECONDS),
                longest=LONGEST_PAUSE,
                report=delivery.report,
            ).run()


async def open_event_streams(leader_jobs: LeaderJobs, ledger: Ledger, conditions: Conditions) -> EventStreams:
    streams = EventStreams(leader_jobs, ledger)
    await streams.begin()
    conditions.add(streams.watch.conditions)
    jobs = [partial(streams.deliver, stream) for stream in STREAMS]
    run_in_background(leader_jobs.context.stack, streams.watch.run, *jobs)
    return streams
