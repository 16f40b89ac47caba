"""The metrics of a worker's attempts, updated in the thread of its usage log."""

from __future__ import annotations

import logging
from collections import Counter, deque

from gateway.metering.attempt import AttemptMeter
from gateway.observability.metrics import Metrics

log = logging.getLogger("florin.metering")


class AttemptMetrics:
    """The event loop calls `changed` and `line`, which only take note; the log's thread calls `update`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # Mutable state of the event loop, read by the thread:
        self._changed: deque[AttemptMeter] = deque()
        """Attempts that began or ended since the last update."""
        self.changed = self._changed.append
        """Called with an attempt that has begun or ended."""
        self._lost = self._logged = 0
        # Mutable state of the thread:
        self._counted = (0, 0)

    def line(self, *, logged: bool) -> None:
        """A final record was written to the log, or lost."""
        if logged:
            self._logged += 1
        else:
            self._lost += 1

    def update(self) -> None:
        """Attempts that end before their first update never appear in the gauge. Requests and tokens are
        summed first, because updating seven counters per attempt would cost more than writing its lines."""
        metrics, tokens = self._metrics, dict[tuple[str, str, str], list[int]]()
        requests: Counter[tuple[str, str]] = Counter()
        for _ in range(len(self._changed)):
            attempt = self._changed.popleft()
            if attempt.outcome is None:
                attempt.shown = True
                metrics.in_flight(attempt.engine, 1)
            elif not attempt.accounted:
                attempt.accounted = True
                if attempt.shown:
                    metrics.in_flight(attempt.engine, -1)
                engine, adapter = attempt.engine, attempt.adapter
                requests[adapter, attempt.outcome.value] += 1
                if attempt.first:
                    metrics.first_token(engine, adapter, (attempt.first - attempt.start) / 1e9)
                metrics.duration(engine, adapter, (attempt.ended - attempt.start) / 1e9)
                prompt, cached, completion = attempt.tokens
                sums = tokens.setdefault((attempt.tenant, attempt.adapter, attempt.gpu_type), [0, 0, 0])
                sums[0] += prompt
                sums[1] += cached or 0
                sums[2] += completion
        for (adapter, outcome), count in requests.items():
            metrics.request(adapter, outcome, count)
        for (tenant, adapter, gpu_type), (prompt, hit, completion) in tokens.items():
            metrics.tokens(
                tenant=tenant,
                adapter=adapter,
                gpu_type=gpu_type,
                prompt=prompt,
                cached=hit,
                completion=completion,
            )
        self._count_lines()

    def _count_lines(self) -> None:
        done = (self._logged, self._lost)
        for result, now, before in zip(("logged", "lost"), done, self._counted, strict=True):
            if now > before:
                self._metrics.usage_records(result, now - before)
        if done[1] > self._counted[1]:
            log.error("Usage log: %d records lost.", done[1] - self._counted[1])
        self._counted = done
