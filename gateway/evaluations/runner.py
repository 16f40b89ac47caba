"""Advances evaluations on one worker: when a batch of one has ended, its answers are scored, or judged.

The batches are run by `gateway.batches.runner`, on any worker. What is done here can be done again from the
database alone: a worker that dies in it loses nothing but its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from gateway.batches.documents import SECOND, Batch, BatchStatus
from gateway.batches.runner import BatchRunner
from gateway.batches.threads import Threads
from gateway.evaluations.answers import judged, scored, texts
from gateway.evaluations.batch_files import write_batch
from gateway.evaluations.cases import Case, read_cases
from gateway.evaluations.documents import REFERENCED, Evaluation, EvaluationPlan, EvaluationStatus, Metric
from gateway.evaluations.evaluation_store import EvaluationStore, Ready
from gateway.evaluations.requests import CANDIDATE, CHAT, judge_line
from gateway.evaluations.summary import summarize
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.units import DAY

log = logging.getLogger(__name__)

ACTOR: Final = "florin"
POLL_SECONDS: Final = 2.0
SOON_SECONDS: Final = 0.25
"""The same while an evaluation runs."""
LEASE: Final = 300 * SECOND
"""How long scoring may take before another worker tries."""


class EvaluationRunner:
    """One worker's. `run` is a background task."""

    def __init__(self, ledger: Ledger, batches: BatchRunner, *, clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds."""
        self.store = EvaluationStore(ledger)
        self.batches = batches
        self._clock = clock
        self._threads = Threads("evaluations")
        self._wake = asyncio.Event()

    def look(self) -> None:
        """An evaluation was started."""
        self._wake.set()
        self.batches.look()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            pause = POLL_SECONDS
            with contextlib.suppress(LedgerUnavailableError):  # batches say so
                if await self.batches.in_thread(self.store.any_open):
                    pause = SOON_SECONDS
                    while await self._threads(self._advance):
                        self.batches.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def shut_down(self) -> None:
        await asyncio.to_thread(self._threads.close)

    # -- in a thread

    def _advance(self) -> bool:
        """Take one evaluation's next step. Returns False if none is ready."""
        now = self._clock()
        ready = self.store.claim(now, now + LEASE)
        if ready is None:
            return False
        evaluation, batch = ready.evaluation, ready.batch
        if batch.status != BatchStatus.COMPLETED:
            self._end(evaluation, EvaluationStatus.FAILED, {"error": _why(batch)})
            return True
        try:
            self._score(ready)
        except LedgerUnavailableError:
            raise
        except Exception:  # a defect; without an end, it would be retried forever
            log.exception("Evaluation %s failed", evaluation.id)
            self._end(
                evaluation,
                EvaluationStatus.FAILED,
                {"error": "Internal error in Florin: see the gateway's log."},
            )
        return True

    def _score(self, ready: Ready) -> None:
        evaluation, plan = ready.evaluation, ready.evaluation.read_plan()
        cases = read_cases(ready.data, references=plan.metric in REFERENCED, limit=plan.limit)
        by_line = {case.line: case for case in cases}
        if plan.metric is Metric.JUDGE and evaluation.status == EvaluationStatus.ANSWERING:
            lines = self._judge_lines(evaluation, plan, by_line)
            first = next(lines, None)
            if first is not None:
                self.store.judge(evaluation, self._judge_batch(evaluation, first, lines))
                return
        answers = scored(self.store.results(evaluation.batch), by_line, plan)
        if evaluation.judge_batch:
            answers = judged(answers, self.store.results(evaluation.judge_batch))
        own = [answer for key, answer in answers.items() if key[1] == CANDIDATE]
        if not any(not answer.error for answer in own):
            codes = ", ".join(sorted({answer.error for answer in own}))
            reason = f"No case was answered by {evaluation.label}: {codes or 'its answers were deleted'}."
            self._end(evaluation, EvaluationStatus.FAILED, {"error": reason})
            return
        summary, passed = summarize(plan, cases, answers, compared=bool(evaluation.against))
        self._end(evaluation, EvaluationStatus.COMPLETED, summary, passed=passed)

    def _judge_lines(
        self, evaluation: Evaluation, plan: EvaluationPlan, cases: dict[int, Case]
    ) -> Iterator[bytes]:
        for key, text in texts(self.store.results(evaluation.batch)):
            yield judge_line(key, cases[key[0]], text, plan)

    def _judge_batch(self, evaluation: Evaluation, first: bytes, rest: Iterator[bytes]) -> Batch:
        def lines() -> Iterator[bytes]:
            yield first
            yield from rest

        return write_batch(
            self.batches.files,
            lines(),
            evaluation=evaluation.id,
            tenant=evaluation.tenant,
            since=evaluation.tenant_since,
            key_id=evaluation.key_id,
            endpoint=CHAT,
            now=self._clock(),
            keep=self.batches.settings.file_retention_days * DAY,
        )

    def _end(
        self,
        evaluation: Evaluation,
        status: EvaluationStatus,
        summary: dict[str, Any],
        *,
        passed: bool | None = None,
    ) -> None:
        if status is EvaluationStatus.FAILED and evaluation.read_plan().decides:
            passed = False
        if self.store.end(evaluation, status, summary, passed=passed, actor=ACTOR, now=self._clock()):
            log.info(
                "Evaluation %s of %s: %s, passed: %s", evaluation.id, evaluation.label, status.value, passed
            )


def _why(batch: Batch) -> str:
    """Why there are no answers."""
    if batch.errors:
        return f"Its requests were refused: {orjson.loads(batch.errors)[0]['message']}"
    if batch.status == BatchStatus.EXPIRED:
        return "Its requests could not all be answered within 24 hours."
    return f"Its batch {batch.id} was {batch.status}."
