"""One attempt while it runs: what the relay tells it, and the records that the flusher makes of it.

`first_token`, `observe` and `end` run on the event loop and only store; ids, records, metrics and JSON are
made in the flusher's thread.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from gateway.metering.records import FINAL, Outcome, UsageRecord, UsageSource, record_id

if TYPE_CHECKING:
    from gateway.metering.meter import Meter


class AttemptMeter:
    """Mutable; written by the event loop, read by the flusher's thread. Times are monotonic beside one look
    at the wall clock, so that a clock that is set back makes no negative duration."""

    __slots__ = (
        "_billable",
        "_cached",
        "_completion",
        "_ended",
        "_estimated",
        "_exact",
        "_first",
        "_meter",
        "_names",
        "_prompt",
        "_reasoning",
        "_start",
        "_wall",
        "checkpoint_due",
        "outcome",
        "seq",
    )

    def __init__(
        self,
        meter: Meter,
        names: tuple[str, int, str, str, str, str, str, str, str, int, int],
    ) -> None:
        """`names`: request id, attempt, tenant, key id, adapter, version, base model, engine, GPU type, GPU
        count, n."""
        self._meter = meter
        self._names = names
        self._wall = time_ns()
        self._start = monotonic_ns()
        self._first = 0
        self._ended = 0
        self._prompt = 0
        self._completion = 0
        self._cached: int | None = None
        self._reasoning = 0
        self._billable = False
        self._exact = False
        self._estimated = False
        self.outcome: Outcome | None = None
        # The flusher's own:
        self.seq = 0
        self.checkpoint_due = 0

    def __repr__(self) -> str:
        return (
            f"<AttemptMeter {self._names[0]}/{self._names[1]} on {self._names[7]} "
            f"{self._prompt}+{self._completion} {self.outcome or 'running'}>"
        )

    @property
    def engine(self) -> str:
        return self._names[7]

    def first_token(self) -> None:
        """The first token has come. Only the first call counts."""
        if not self._first:
            self._first = monotonic_ns()

    def observe(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None, reasoning_tokens: int
    ) -> None:
        """The engine's counts so far: cumulative, each call replaces the one before."""
        self._prompt = prompt_tokens
        self._completion = completion_tokens
        self._cached = cached_tokens
        self._reasoning = reasoning_tokens

    def end(self, outcome: Outcome, *, billable: bool, exact: bool, estimated: bool = False) -> None:
        """The attempt is over. The first call wins; call it from `finally`.

        `exact`: the counts seen last are the engine's closing ones. `estimated`: they are the gateway's
        guess, not the engine's.
        """
        if self.outcome is not None:
            return
        self._ended = monotonic_ns()
        self._billable = billable
        self._exact = exact
        self._estimated = estimated
        self.outcome = outcome
        meter = self._meter
        if not meter.append(self.final):
            meter.forget(self)

    # In the flusher's thread:

    def intent(self) -> UsageRecord | None:
        """None when the attempt is over already: its final is in the queue, and says it all."""
        if self.outcome is not None:
            return None
        self._meter.follow(self)
        return self._record(seq=0)

    def checkpoint(self) -> UsageRecord:
        self.seq += 1
        return self._record(seq=self.seq)

    def final(self) -> UsageRecord:
        record = self._record(seq=FINAL)
        self._meter.finished(self, record)
        return record

    def _source(self) -> UsageSource:
        if not (self._prompt or self._completion):  # every prompt has tokens: nothing was seen
            return UsageSource.NONE
        if self._estimated:
            return UsageSource.ESTIMATED
        return UsageSource.ENGINE_FINAL if self._exact else UsageSource.ENGINE_PARTIAL

    def _record(self, *, seq: int) -> UsageRecord:
        request_id, attempt, tenant, key_id, adapter, version, base, engine, gpu, gpus, n = self._names
        final = seq == FINAL
        at = self._at(self._ended if final else monotonic_ns())
        return UsageRecord(
            id=record_id(request_id, attempt),
            request_id=request_id,
            attempt=attempt,
            tenant=tenant,
            key_id=key_id,
            adapter=adapter,
            version=version,
            base_model=base,
            engine=engine,
            gpu_type=gpu,
            gpu_count=gpus,
            dispatched=self._wall // 1000,
            first_token=self._at(self._first) if self._first else None,
            ended=at if final else None,
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            completion_tokens=self._completion,
            reasoning_tokens=self._reasoning,
            n=n,
            usage_source=self._source().value,
            outcome=self.outcome.value if final and self.outcome else "",
            billable=final and self._billable,
            seq=seq,
            seen=at,
        )

    def _at(self, monotonic: int) -> int:
        """UTC microseconds of a monotonic time."""
        return (self._wall + monotonic - self._start) // 1000
