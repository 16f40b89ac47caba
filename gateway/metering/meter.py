"""Metering of a worker: turns attempts into usage records in the usage log, and ships them to the
ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from gateway.metering.attempt import AttemptMeter, Names
from gateway.metering.attempt_metrics import AttemptMetrics
from gateway.metering.held_finals import HeldFinals
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import NO_LABELS, Labels, Outcome, UsageRecord, UsageSource, record_id
from gateway.metering.wal.insertion import Inserter
from gateway.metering.wal.kept import KeptLog
from gateway.metering.wal.log import WriteAheadLog
from gateway.metering.wal.segments import WorkerDirectory
from gateway.metering.wal.shipper import Shipper
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import Clock

_REJECTIONS = 200
"""Rejections recorded per tick (a second), so that a flood cannot fill the ledger."""

_BEHIND = 60.0
"""Seconds that a usage record may wait for the ledger before `behind` is true."""


class Meter:
    """Meters the attempts of one worker. There is one per worker.

    It owns the worker's usage log and the shipper to the ledger, each with its own thread. The
    lifecycle calls `begin` for each attempt and then uses the `AttemptMeter`; for requests that never reach
    an engine, it calls `reject`.

    Invariants:

    - An attempt's intent is written before the engine receives the request, and its final record before the
      client receives the end of the answer.
    - Every attempt that has begun gets exactly one final record: from `AttemptMeter.end`, or, if the worker
      dies, from the worker that adopts its log.
    - (request id, attempt) identifies a record, so shipping it twice stores it once.

    `begin`, `reject` and the properties are for the event loop. The log's thread calls `_tick` and `_carry`,
    and updates the metrics.
    """

    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        metrics: Metrics,
        *,
        serve_when_full: bool = False,
        segment_bytes: int = 64 * 1024 * 1024,
        clock: Clock | None = None,
        inserter: Inserter | None = None,
        kept_seconds: float = 0.0,
        last_seconds: float = 3.0,
    ) -> None:
        """`root` is `usage` in the state directory, shared by the workers of this host. `inserter` and
        `last_seconds`: see `Shipper`. `kept_seconds`: how long to keep records that the ledger has
        acknowledged."""
        self._kept_seconds = kept_seconds
        self._last_seconds = last_seconds
        self._inserter = inserter
        self.clock = clock or Clock()
        self._root = root
        self._ledger = ledger
        self._metrics = metrics
        self._serve_when_full = serve_when_full
        self._segment_bytes = segment_bytes
        self._accounting = AttemptMetrics(metrics)
        self._wal: WriteAheadLog | None = None
        self._shipper: Shipper | None = None
        # Mutable state of the event loop, read by the log's thread:
        self._open: dict[AttemptMeter, None] = {}
        """Attempts with an intent but no final in the log."""
        self._rejections = 0

    def __repr__(self) -> str:
        return f"<Meter open={len(self._open)} {self._wal!r}>"

    async def start(self) -> None:
        """Raises OSError if the log cannot be written. The ledger may be unavailable."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        directory = WorkerDirectory.create(self._root)
        self._wal = WriteAheadLog(
            directory,
            segment_bytes=self._segment_bytes,
            tick=self._tick,
            carry=self._carry,
            after=self._accounting.update,
            synced=self._metrics.wal_write,
        )
        try:
            self._wal.open()
        except OSError:
            directory.remove()
            directory.release()
            raise
        self._shipper = Shipper(
            self._root,
            directory,
            self._wal,
            self._ledger,
            self._metrics,
            now=self.clock.now,
            inserter=self._inserter,
            kept=KeptLog(self._root, self._kept_seconds) if self._kept_seconds else None,
            last_seconds=self._last_seconds,
        )
        self._shipper.start()

    async def close(self) -> None:
        """Write everything, ship what can be shipped, and stop the threads. The rest stays on disk for the
        next worker. Call it when no attempt is running: open attempts are closed as orphaned."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._wal is not None:
            self._wal.close()
        if self._shipper is not None:
            self._shipper.close()

    @property
    def accepting(self) -> bool:
        """False if the log cannot be written and the settings say to refuse requests then."""
        return self._serve_when_full or (self._wal is not None and self._wal.healthy)

    @property
    def disk_slow(self) -> bool:
        """Whether requests have to wait for writes to the log."""
        return self._wal is not None and self._wal.slow

    @property
    def backlog(self) -> float:
        """Seconds that the oldest unshipped record has waited for the ledger; 0 if the ledger accepts
        records."""
        return self._shipper.age if self._shipper else 0.0

    @property
    def newer_logs(self) -> frozenset[Path]:
        """Usage logs on this host that wait for the newer version of Florin that wrote them."""
        return frozenset(self._shipper.newer) if self._shipper else frozenset()

    @property
    def behind(self) -> bool:
        """Whether the ledger's database needs attention."""
        return self.backlog > _BEHIND

    async def flush(self) -> bool:
        """Ship every record of this worker so far. False if the backlog takes longer. Raises
        LedgerUnavailableError."""
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
        prompts: int = 1,
        adapter_loads: int = 0,
        estimate: int = 0,
        continues: bool = False,
        free: bool = False,
        labels: Labels = NO_LABELS,
        service_tier: str = "",
        task: str = "",
        held_finals: HeldFinals | None = None,
    ) -> AttemptMeter:
        """Begin an attempt. Send it to the engine only after `await attempt.logged()`.

        `adapter` is the full name and `version` is like `v3`; both are empty for the base model. `request_id`
        must be generated by the gateway, since (request_id, attempt) is the deduplication key. `n`: choices
        per prompt. `estimate`: prompt tokens to record if the engine reports none. `continues`: the attempt
        continues a stream that another engine began. `free`: it processes no tokens, which is exact.
        `held_finals`: gets the attempt's final record instead of the log, if it is billable."""
        names: Names = (tenant, key_id, adapter, version, base_model, engine, gpu_type, gpu_count)
        attempt_meter = AttemptMeter(
            self if held_finals is None else held_finals.recorder(self),
            request_id,
            attempt,
            names,
            n=n,
            prompts=prompts,
            adapter_loads=adapter_loads,
            estimate=estimate,
            continues=continues,
            free=free,
            labels=labels,
            service_tier=service_tier,
            task=task,
        )
        self._open[attempt_meter] = None
        self._accounting.changed(attempt_meter)
        if self._wal is not None:
            self._wal.append(attempt_meter.intent(), final=False)
        return attempt_meter

    def reject(
        self,
        *,
        request_id: str,
        tenant: str,
        key_id: str,
        adapter: str | None = None,
        base_model: str = "",
        labels: Labels = NO_LABELS,
    ) -> None:
        """Record a request that ended before it reached an engine: no tokens, and nothing to attribute.
        `adapter` is None if the request named no known adapter. Without a tenant, it is only counted."""
        self._metrics.request(adapter, Outcome.REJECTED.value)
        if not tenant:
            return
        if self._rejections >= _REJECTIONS:
            self._metrics.usage_records("unrecorded")
            return
        self._rejections += 1
        record = _rejected(
            request_id=request_id,
            tenant=tenant,
            key_id=key_id,
            adapter=adapter or "",
            base_model=base_model,
            now=self.clock.now(),
            labels=labels,
        )
        self._final(record.line())

    # For AttemptMeter:

    def finished(self, attempt: AttemptMeter, line: bytes) -> None:
        self._open.pop(attempt, None)
        self._accounting.changed(attempt)
        self._final(line)

    @property
    def written(self) -> bool:
        return self._wal is None or not self._wal.queued

    async def settled(self) -> None:
        if self._wal is not None:
            await self._wal.settled()

    def _final(self, line: bytes) -> None:
        self._accounting.line(logged=self._wal is not None and self._wal.append(line))

    # For the log, in its thread:

    def _tick(self) -> Iterator[bytes]:
        self._rejections = 0
        return (a.checkpoint() for a in self._running() if a.outcome is None and a.checkpoint_due)

    def _carry(self) -> Iterator[bytes]:
        return (a.checkpoint() for a in self._running() if a.outcome is None or a.held)

    def _running(self) -> list[AttemptMeter]:
        while True:
            try:
                return list(self._open)
            except RuntimeError:  # the event loop changed it meanwhile
                continue


def _rejected(
    *, request_id: str, tenant: str, key_id: str, adapter: str, base_model: str, now: int, labels: Labels
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
        **labels._asdict(),
        seen=now,
    )
