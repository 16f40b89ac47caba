"""What the lifecycle speaks to: begin an attempt, tell it what the engine says, end it.

One `Meter` per worker. It owns the worker's log and the shipper to the ledger, each with a thread of its
own. An attempt's intent is written before the engine hears of it, and its final before the client hears the
end; metrics follow in the log's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from gateway.metering.attempt import AttemptMeter, Names
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import Outcome, UsageRecord, UsageSource, record_id
from gateway.metering.wal.log import WriteAheadLog
from gateway.metering.wal.segments import WorkerDirectory
from gateway.metering.wal.shipper import Shipper
from gateway.observability.metrics import Metrics
from gateway.runtime.clock import Clock

log = logging.getLogger("florin.metering")

_REJECTIONS = 200
"""Rejections recorded per tick (a second): a flood of them must not fill the ledger."""

_BEHIND = 60.0
"""Seconds that a usage record may wait for the ledger."""


class Meter:
    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        metrics: Metrics,
        *,
        serve_when_full: bool = False,
        segment_bytes: int = 64 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        """`root` is `usage` in the state directory, shared by the workers of this host."""
        self.clock = clock or Clock()
        self._root = root
        self._ledger = ledger
        self._metrics = metrics
        self._serve_when_full = serve_when_full
        self._segment_bytes = segment_bytes
        self._wal: WriteAheadLog | None = None
        self._shipper: Shipper | None = None
        # Mutable state of the event loop, looked at by the log's thread:
        self._open: dict[AttemptMeter, None] = {}
        """Attempts whose intent is in the log and whose final is not."""
        self._news: deque[AttemptMeter] = deque()
        """Those that have begun or ended since the thread last looked."""
        self._rejections = 0
        self._lost = self._logged = 0
        # Mutable state of the thread:
        self._counted = (0, 0)

    def __repr__(self) -> str:
        return f"<Meter open={len(self._open)} {self._wal!r}>"

    async def start(self) -> None:
        """Raises OSError when the log cannot be written at all. The ledger may be away."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        directory = WorkerDirectory.create(self._root)
        self._wal = WriteAheadLog(
            directory,
            segment_bytes=self._segment_bytes,
            tick=self._tick,
            carry=self._carry,
            after=self._account,
            synced=self._metrics.wal_write,
        )
        try:
            self._wal.open()
        except OSError:
            directory.remove()
            directory.release()
            raise
        self._shipper = Shipper(
            self._root, directory, self._wal, self._ledger, self._metrics, now=self.clock.now
        )
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

    @property
    def disk_slow(self) -> bool:
        """Writes to the log take so long that requests wait for them."""
        return self._wal is not None and self._wal.slow

    @property
    def backlog(self) -> float:
        """Seconds that the oldest record which the ledger would not take has waited; 0: none does."""
        return self._shipper.age if self._shipper else 0.0

    @property
    def behind(self) -> bool:
        """Somebody should look at the ledger's database."""
        return self.backlog > _BEHIND

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
        prompts: int = 1,
        adapter_loads: int = 0,
        estimate: int = 0,
        continues: bool = False,
    ) -> AttemptMeter:
        """An attempt is about to be sent to an engine, once `await attempt.logged()` has returned. `adapter`
        is the full name and `version` `v3`; both empty for the base model. `request_id` must be the gateway's
        own: (request_id, attempt) is the dedupe key. `n`: choices for each of `prompts`. `estimate`: prompt
        tokens, should the engine never say. `continues`: it goes on with a stream that another engine began.
        """
        names: Names = (tenant, key_id, adapter, version, base_model, engine, gpu_type, gpu_count)
        made = AttemptMeter(
            self,
            request_id,
            attempt,
            names,
            n=n,
            prompts=prompts,
            adapter_loads=adapter_loads,
            estimate=estimate,
            continues=continues,
        )
        self._open[made] = None
        self._news.append(made)
        if self._wal is not None:
            self._wal.append(made.intent(), final=False)
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
        record = _rejected(
            request_id=request_id,
            tenant=tenant,
            key_id=key_id,
            adapter=adapter or "",
            base_model=base_model,
            now=self.clock.now(),
        )
        self._final(record.line())

    # For AttemptMeter:

    def finished(self, attempt: AttemptMeter, line: bytes) -> None:
        self._open.pop(attempt, None)
        self._news.append(attempt)
        self._final(line)

    async def settled(self) -> None:
        if self._wal is not None:
            await self._wal.settled()

    def _final(self, line: bytes) -> None:
        if self._wal is not None and self._wal.append(line):
            self._logged += 1
        else:
            self._lost += 1

    # For the log, in its thread:

    def _tick(self) -> Iterator[bytes]:
        self._rejections = 0
        return (a.checkpoint() for a in self._running() if a.outcome is None and a.checkpoint_due)

    def _carry(self) -> Iterator[bytes]:
        return (a.checkpoint() for a in self._running() if a.outcome is None)

    def _running(self) -> list[AttemptMeter]:
        while True:
            try:
                return list(self._open)
            except RuntimeError:  # it changed meanwhile
                continue

    def _account(self) -> None:
        """Metrics of what has begun or ended. Attempts that ended before this first saw them never stood in
        the gauge. Tokens are summed first: six counters for each attempt would cost more than its lines."""
        metrics, tokens = self._metrics, dict[tuple[str, str, str], list[int]]()
        for _ in range(len(self._news)):
            attempt = self._news.popleft()
            if attempt.outcome is None:
                attempt.shown = True
                metrics.in_flight(attempt.engine, 1)
            elif not attempt.accounted:
                attempt.accounted = True
                if attempt.shown:
                    metrics.in_flight(attempt.engine, -1)
                metrics.request(attempt.adapter, attempt.outcome.value)
                engine, adapter = attempt.engine, attempt.adapter
                if attempt.first:
                    metrics.first_token(engine, adapter, (attempt.first - attempt.start) / 1e9)
                metrics.duration(engine, adapter, (attempt.ended - attempt.start) / 1e9)
                prompt, cached, completion = attempt.tokens
                sums = tokens.setdefault((attempt.tenant, attempt.adapter, attempt.gpu_type), [0, 0, 0])
                sums[0] += prompt
                sums[1] += cached or 0
                sums[2] += completion
        for (tenant, adapter, gpu_type), (prompt, hit, completion) in tokens.items():
            metrics.tokens(
                tenant=tenant,
                adapter=adapter,
                gpu_type=gpu_type,
                prompt=prompt,
                cached=hit,
                completion=completion,
            )
        self._account_for_lines()

    def _account_for_lines(self) -> None:
        done = (self._logged, self._lost)
        for result, now, before in zip(("logged", "lost"), done, self._counted, strict=True):
            if now > before:
                self._metrics.usage_records(result, now - before)
        if done[1] > self._counted[1]:
            log.error("Usage log: %d records are lost.", done[1] - self._counted[1])
        self._counted = done


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
