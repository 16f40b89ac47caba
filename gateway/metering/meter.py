"""What the lifecycle speaks to: begin an attempt, tell it what the engine says, end it.

One `Meter` per worker. It owns the worker's log and the shipper to the ledger, each with a thread of its
own; nothing here waits on the event loop but `start` and `close`, which are awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic_ns, time_ns

from gateway.metering.attempt import AttemptMeter
from gateway.metering.ledger import Ledger
from gateway.metering.records import Outcome, UsageRecord, UsageSource, record_id
from gateway.metering.segments import WorkerDirectory
from gateway.metering.shipper import Shipper
from gateway.metering.wal import Entry, WriteAheadLog
from gateway.metrics import Metrics

log = logging.getLogger("florin.metering")

CHECKPOINT = 5_000_000_000
"""Nanoseconds between checkpoints of an attempt that runs on."""
_REJECTIONS = 200
"""Rejections recorded per tick (a second): a flood of them must not fill the ledger."""


class Meter:
    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        metrics: Metrics,
        *,
        serve_when_full: bool = False,
        segment_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        """`root` is `usage` in the state directory, shared by the workers of this host."""
        self._root = root
        self._ledger = ledger
        self._metrics = metrics
        self._serve_when_full = serve_when_full
        self._segment_bytes = segment_bytes
        self._wal: WriteAheadLog | None = None
        self._shipper: Shipper | None = None
        # Mutable state of the flusher's thread (`forget` takes from it on the event loop): attempts whose
        # intent is in the log and whose final is not.
        self._open: dict[AttemptMeter, None] = {}
        self._rejections = 0
        self.append: Callable[[Entry], bool] = _nowhere
        """The log's, once started: called directly, which saves a call on the hot path."""

    def __repr__(self) -> str:
        return f"<Meter open={len(self._open)} {self._wal!r}>"

    async def start(self) -> None:
        """Raises OSError when the log cannot be written at all. The ledger may be away."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        directory = WorkerDirectory.create(self._root)
        self._wal = WriteAheadLog(
            directory,
            self._metrics,
            segment_bytes=self._segment_bytes,
            tick=self._tick,
            carry=self._carry,
        )
        try:
            self._wal.open()
        except OSError:
            directory.remove()
            directory.release()
            raise
        self.append = self._wal.append
        self._shipper = Shipper(self._root, directory, self._wal.flush, self._ledger, self._metrics)
        self._shipper.start()

    async def close(self) -> None:
        """Write everything, ship what can be shipped, and stop the threads. What cannot be shipped now stays
        on disk for the next worker. Call it when no attempt runs any more: those still open are closed as
        orphaned."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._wal is not None:
            self._wal.close()
        if self._shipper is not None:
            self._shipper.close()

    @property
    def accepting(self) -> bool:
        """False: the log cannot be written, and the setting is to refuse requests then."""
        return self._serve_when_full or (self._wal is not None and self._wal.healthy)

    async def flush(self) -> bool:
        """Bring all that has ended so far on this worker into the ledger. False: there is a backlog that
        takes longer. Raises LedgerUnavailableError."""
        return self._shipper is not None and await asyncio.to_thread(self._shipper.flush_now)

    def begin(
        self,
        *,
        request_id: str,
        attempt: int,
        tenant: str,
        key_id: str,
        adapter: str,
        version: str,
        base_model: str,
        engine: str,
        gpu_type: str,
        gpu_count: int,
        n: int,
    ) -> AttemptMeter:
        """An attempt is being sent to an engine. `adapter` is the full name and `version` `v3`; both empty
        for the base model. `request_id` must be the gateway's own: (request_id, attempt) is the dedupe key.
        """
        made = AttemptMeter(
            self,
            (
                request_id, attempt, tenant, key_id, adapter, version, base_model, engine, gpu_type,
                gpu_count, n,
            ),
        )  # fmt: skip  # one name a line says no more
        self.append(made.intent)
        return made

    def reject(
        self, *, request_id: str, tenant: str, key_id: str, adapter: str | None = None, base_model: str = ""
    ) -> None:
        """A request ended before it was sent to any engine. `adapter` None: it named nothing that the
        registry knows. No tokens, and nothing to attribute; without a tenant, only counted."""
        self._metrics.request(adapter, Outcome.REJECTED.value)
        if not tenant:
            return
        if self._rejections >= _REJECTIONS:
            self._metrics.usage_records("unrecorded")
            return
        self._rejections += 1
        self.append(
            partial(
                _rejected,
                request_id=request_id,
                tenant=tenant,
                key_id=key_id,
                adapter=adapter or "",
                base_model=base_model,
                now=time_ns() // 1000,
            )
        )

    # For AttemptMeter:

    def follow(self, attempt: AttemptMeter) -> None:
        self._open[attempt] = None
        attempt.checkpoint_due = monotonic_ns() + CHECKPOINT
        self._metrics.in_flight(attempt.engine, 1)

    def forget(self, attempt: AttemptMeter) -> None:
        if self._open.pop(attempt, 0) is None:
            self._metrics.in_flight(attempt.engine, -1)

    def finished(self, attempt: AttemptMeter, record: UsageRecord) -> None:
        self.forget(attempt)
        metrics = self._metrics
        metrics.request(record.adapter, record.outcome)
        if record.first_token is not None:
            metrics.first_token((record.first_token - record.dispatched) / 1e6)
        if record.ended is not None:
            metrics.duration((record.ended - record.dispatched) / 1e6)
        metrics.tokens(
            tenant=record.tenant,
            adapter=record.adapter,
            gpu_type=record.gpu_type,
            prompt=record.prompt_tokens,
            cached=record.cached_tokens or 0,
            completion=record.completion_tokens,
        )

    # For the log, in the flusher's thread:

    def _tick(self) -> Iterator[UsageRecord]:
        self._rejections = 0
        now = monotonic_ns()
        for attempt in list(self._open):
            if attempt.checkpoint_due <= now and attempt.outcome is None:
                attempt.checkpoint_due = now + CHECKPOINT
                yield attempt.checkpoint()

    def _carry(self) -> list[UsageRecord]:
        return [attempt.checkpoint() for attempt in list(self._open)]


def _nowhere(entry: Entry) -> bool:
    del entry
    return False


def _rejected(
    *, request_id: str, tenant: str, key_id: str, adapter: str, base_model: str, now: int
) -> UsageRecord:
    return UsageRecord(
        id=record_id(request_id, 0),
        request_id=request_id,
        attempt=0,
        tenant=tenant,
        key_id=key_id,
        adapter=adapter,
        version="",
        base_model=base_model,
        engine="",
        gpu_type="",
        gpu_count=0,
        dispatched=now,
        first_token=None,
        ended=now,
        prompt_tokens=0,
        cached_tokens=None,
        completion_tokens=0,
        reasoning_tokens=0,
        n=0,
        usage_source=UsageSource.NONE.value,
        outcome=Outcome.REJECTED.value,
        billable=False,
        seen=now,
    )
