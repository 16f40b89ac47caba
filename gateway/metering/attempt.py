"""Metering of one attempt while it runs, and the log lines it produces.

The lines are assembled from text, much faster than serializing a UsageRecord, because writing intent and
final delays the answer; tests compare them with `UsageRecord.line`.
"""

from __future__ import annotations

from functools import lru_cache
from time import monotonic_ns
from typing import Protocol

import orjson

from gateway.metering.output_estimate import AnswerSpeed
from gateway.metering.records import CONTINUED, FINAL, NO_LABELS, Labels, Outcome, UsageSource, record_id
from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE, plausible
from gateway.runtime.clock import Clock
from gateway.units import HOUR

FIRST_CHECKPOINT = 1_000_000_000
"""Nanoseconds until an attempt's first checkpoint. The next ones come when its age has doubled, at least
every CHECKPOINT, and at each full hour."""
CHECKPOINT = 5_000_000_000

Names = tuple[str, str, str, str, str, str, str, int]
"""Tenant, key id, adapter, version, base model, engine, GPU type, GPU count."""
Mark = tuple[int, int, int | None, int]
"""An entry of `UsageRecord.hour_marks`."""


class Recorder(Protocol):
    """The part of `Meter` that an attempt uses."""

    clock: Clock

    def finished(self, attempt: AttemptMeter, line: bytes) -> None: ...

    @property
    def written(self) -> bool: ...

    async def settled(self) -> None: ...


class AttemptMeter:
    """Collects the usage of one attempt and writes its lines. Created by `Meter.begin`.

    The lifecycle awaits `logged` before it sends the request; the relay calls `first_token` and `observe` as
    the engine answers; the lifecycle calls `end` exactly once, from `finally`. Only the event loop changes
    it; the log's thread reads it and writes checkpoints (`checkpoint_due`, `checkpoint`).

    Counts are cumulative, and implausible ones are ignored. Durations come from the monotonic clock, anchored
    to one reading of the gateway's clock, so that setting the system time changes no duration. If the
    gateway's clock itself is set, the attempt counts until that moment."""

    __slots__ = (
        "_billable",
        "_cached",
        "_completion",
        "_continues",
        "_due",
        "_era",
        "_estimate",
        "_exact",
        "_free",
        "_guessed",
        "_head",
        "_labels",
        "_loads",
        "_marks",
        "_meter",
        "_most",
        "_n",
        "_names",
        "_next_hour",
        "_output",
        "_prompt",
        "_prompts",
        "_reasoning",
        "_refused",
        "_speed",
        "_start",
        "_wall",
        "accounted",
        "ended",
        "first",
        "held",
        "outcome",
        "seq",
        "shown",
    )

    def __init__(
        self,
        meter: Recorder,
        request_id: str,
        attempt: int,
        names: Names,
        *,
        n: int,
        adapter_loads: int,
        estimate: int,
        prompts: int = 1,
        continues: bool = False,
        free: bool = False,
        labels: Labels = NO_LABELS,
        service_tier: str = "",
        task: str = "",
    ) -> None:
        """See `Meter.begin`."""
        self._meter = meter
        self._names = names
        self._n = n
        self._prompts = prompts
        self._continues = continues
        self._free = free
        self._loads = adapter_loads
        wall = meter.clock.now_ns()
        self._wall = wall
        self._era = meter.clock.era
        self._start = monotonic_ns()
        dispatched = wall // 1000
        self._next_hour = dispatched - dispatched % HOUR + HOUR
        self._head = (
            f'{{"id":"{record_id(request_id, attempt)}","request_id":{_text(request_id)},'
            f'"attempt":{attempt},{_named(names)},"dispatched":{dispatched},'
        )
        plain = labels == NO_LABELS and not service_tier and not task
        self._labels = _UNLABELLED if plain else _labelled(labels, service_tier, task)
        self._prompt = 0
        self._completion = 0
        self._cached: int | None = None
        self._reasoning = 0
        self._billable = False
        self._exact = False
        self._guessed = False
        self._refused = False
        """The engine's latest counts were implausible; the counts here are the last plausible ones."""
        self._estimate = min(estimate, MAX_TOKENS_PER_CHOICE * prompts)
        self._speed: AnswerSpeed | None = None
        self._most = 0
        self._output = 0
        """Estimated when it ended without counts."""
        self._marks: tuple[Mark, ...] = ()
        self.first = 0
        """Monotonic nanoseconds, like `ended`; 0 before it happens."""
        self.ended = 0
        self.outcome: Outcome | None = None
        self.held = False
        """It has ended, and its final record is held back: see `HeldFinals`."""
        # Owned by the log's thread:
        self.seq = 0
        self._due = self._start + FIRST_CHECKPOINT
        self.shown = False
        """Whether the in-flight gauge includes it."""
        self.accounted = False
        """Whether the metrics include its end."""

    def __repr__(self) -> str:
        return (
            f"<AttemptMeter {self._head[:60]} on {self.engine} "
            f"{self._prompt}+{self._completion} {self.outcome or 'running'}>"
        )

    @property
    def tenant(self) -> str:
        return self._names[0]

    @property
    def adapter(self) -> str:
        return self._names[2]

    @property
    def engine(self) -> str:
        return self._names[5]

    @property
    def gpu_type(self) -> str:
        return self._names[6]

    @property
    def tokens(self) -> tuple[int, int | None, int]:
        """Prompt, cached and completion tokens as last reported; without a report, as estimated: the output
        only once it has ended."""
        if self._prompt or self._completion:
            return self._prompt, self._cached, self._completion
        return self._estimate, self._cached, self._output

    @property
    def _silent(self) -> bool:
        """Whether the engine has reported no counts."""
        return not (self._prompt or self._completion)  # every prompt has tokens

    @property
    def billed(self) -> tuple[int, int, int]:
        """Prompt, cached and completion tokens that the tenant pays for; zeros if the attempt does not count
        or has not ended. A continued stream's prompt does not count."""
        if not self._billable:
            return 0, 0, 0
        prompt, cached, completion = self.tokens
        return (0, 0, completion) if self.outcome in CONTINUED else (prompt, cached or 0, completion)

    @property
    def billed_besides(self) -> tuple[int, int]:
        """Reasoning tokens, a part of the completion's, and requests that the tenant pays for: none if the
        attempt does not count, and no request if it continued another's answer."""
        return (self._reasoning, int(self.outcome not in CONTINUED)) if self._billable else (0, 0)

    @property
    def billable(self) -> bool:
        return self._billable

    @property
    def start(self) -> int:
        return self._start

    def first_token(self) -> None:
        """Note the time of the first token. Later calls have no effect."""
        if not self.first:
            self.first = monotonic_ns()

    def observe(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None, reasoning_tokens: int
    ) -> None:
        """Set the engine's cumulative counts so far.

        Implausible counts (see `token_counts.plausible`) of any type are ignored: the last plausible ones
        remain, and the record says `engine_partial`, or `estimated` if there are none. Later plausible counts
        are accepted again."""
        self._refused = not plausible(
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            reasoning_tokens,
            prompts=self._prompts,
            choices=self._prompts * self._n,
        )
        if self._refused:
            return
        self._prompt = prompt_tokens
        self._completion = completion_tokens
        self._cached = cached_tokens
        self._reasoning = reasoning_tokens

    def guess(self) -> None:
        """The counts are estimates until the engine's final ones."""
        self._guessed = True

    def reports_at_end(self, speed: AnswerSpeed, *, most: int | None, context: int = 0) -> None:
        """The engine will report no counts before the end of its answer. If the answer is cut off, the output
        is estimated: see `output_estimate`. `most`: output tokens of each choice; None: no bound. `context`:
        tokens that the engine has room for; 0: unknown."""
        self._speed = speed
        longest = min(context or MAX_TOKENS_PER_CHOICE, MAX_TOKENS_PER_CHOICE)
        self._most = longest if most is None else min(most, longest)

    def _output_until(self, now: int) -> int:
        if self._speed is None:
            return 0
        return min(self._most, self._speed.tokens(now - self._start)) * self._prompts * self._n

    def end(self, outcome: Outcome, *, billable: bool, exact: bool, worked: bool = True) -> None:
        """End the attempt. Call it from `finally`; only the first call has an effect.

        `exact`: the last counts are the engine's final ones. `worked`: the engine may have processed the
        request, so that the estimates apply if it reported no counts. The output of a complete answer is
        never estimated: an engine that sends impossible counts bills nobody.
        """
        if self.outcome is not None:
            return
        self.ended = monotonic_ns()
        if self._continues and billable:
            billable = self.first != 0  # otherwise nothing was delivered
            if billable:
                outcome = Outcome.RESUMED if outcome is Outcome.OK else Outcome.RESUMED_CUT
        self._billable = billable
        self._exact = exact
        if not worked:
            self._estimate = 0
        elif outcome is not Outcome.OK and self._silent:
            self._output = self._output_until(self.ended)
        self.outcome = outcome
        self._meter.finished(self, self._line(FINAL, self.ended))

    @property
    def written(self) -> bool:
        """Whether the attempt's lines are written to the operating system, as nearly always."""
        return self._meter.written

    async def logged(self) -> None:
        """Wait until they are, or writing is known to fail. Await it, unless they are `written`, before
        sending the request to the engine, and before ending the answer to the client."""
        await self._meter.settled()

    def intent(self) -> bytes:
        return self._line(0, self._start)

    # In the log's thread, while the event loop cannot write the final, so that checkpoints precede it.

    @property
    def checkpoint_due(self) -> bool:
        now = monotonic_ns()
        return now >= self._due or (self.first != 0 and self.at(now) >= self._due_mark())

    def checkpoint(self) -> bytes:
        now = self.ended or monotonic_ns()
        self._due = now + min(now - self._start, CHECKPOINT)
        self._marks = self._marks_until(self.at(now))
        self.seq += 1
        return self._line(self.seq, now)

    def at(self, monotonic: int) -> int:
        """Converts a monotonic time to UTC microseconds."""
        clock = self._meter.clock
        if clock.era != self._era:
            monotonic = min(monotonic, max(self._start, clock.ended(self._era) or monotonic))
        return (self._wall + monotonic - self._start) // 1000

    def _due_mark(self) -> int:
        return self._marks[-1][0] + HOUR if self._marks else self._next_hour

    def _marks_until(self, now: int) -> tuple[Mark, ...]:
        """The marks, extended by those of hours that have passed since: the current counts, at most a second
        after the full hour, under the time of the full hour. Hours before the first token get zeros."""
        marks = self._marks
        if not self.first:
            return marks
        due = self._due_mark()
        first = self.at(self.first)
        while due <= now:
            none = due < first
            marks = (
                *marks,
                (due, 0, None, 0) if none else (due, self._prompt, self._cached, self._completion),
            )
            due += HOUR
        return marks

    def _source(self, *, silent: bool) -> UsageSource:
        if self._free:
            return UsageSource.ENGINE_FINAL
        if silent:
            return UsageSource.ESTIMATED if self._estimate else UsageSource.NONE
        if self._exact and not self._refused:
            return UsageSource.ENGINE_FINAL
        return UsageSource.ESTIMATED if self._guessed else UsageSource.ENGINE_PARTIAL

    def _line(self, seq: int, when: int) -> bytes:
        """The line, as UsageRecord.line() would write it."""
        seen = self.at(when) if when != self._start else self._wall // 1000
        marks: tuple[Mark, ...] = self._marks
        if seen >= self._next_hour:
            marks = self._marks_until(seen)
        final = seq == FINAL
        prompt, cached, completion = self._prompt, self._cached, self._completion
        silent = not (prompt or completion)
        if silent:
            prompt, completion = self._estimate, self._output
            if not self.ended and self._speed is not None:  # in case that this line becomes the last
                completion = self._output_until(when)
        return (
            f'{self._head}"first_token":{self.at(self.first) if self.first else "null"},'
            f'"ended":{seen if final else "null"},"prompt_tokens":{prompt},'
            f'"cached_tokens":{"null" if cached is None else cached},'
            f'"completion_tokens":{completion},"reasoning_tokens":{self._reasoning},"n":{self._n},'
            f'"usage_source":"{self._source(silent=silent)}",'
            f'"outcome":"{self.outcome if final and self.outcome else ""}",'
            f'"billable":{"true" if final and self._billable else "false"},"adapter_loads":{self._loads},'
            f'"hour_marks":{_marked(marks, prompt, completion) if marks else "null"},'
            f'{self._labels}"seq":{seq},"seen":{seen}}}\n'
        ).encode()


def _text(value: str) -> str:
    return orjson.dumps(value).decode()


def _labelled(labels: Labels, tier: str = "", task: str = "") -> str:
    end_user, tag, cost_centre = (orjson.dumps(label).decode() for label in labels)
    return (
        f'"end_user":{end_user},"tag":{tag},"cost_centre":{cost_centre},'
        f'"service_tier":"{tier}","task":"{task}",'
    )


_UNLABELLED = _labelled(NO_LABELS)


@lru_cache(maxsize=4096)
def _named(names: Names) -> str:
    tenant, key_id, adapter, version, base, engine, gpu, gpus = names
    return (
        f'"tenant":{_text(tenant)},"key_id":{_text(key_id)},"adapter":{_text(adapter)},'
        f'"version":{_text(version)},"base_model":{_text(base)},"engine":{_text(engine)},'
        f'"gpu_type":{_text(gpu)},"gpu_count":{gpus}'
    )


def _marked(marks: tuple[Mark, ...], prompt: int, completion: int) -> str:
    """JSON within a JSON string; digits, brackets and `null` need no escaping. Makes marks ascend to the
    final counts, even if the engine counted backwards."""
    rows: list[Mark] = []
    for hour, p, cached, done in reversed(marks):
        prompt, completion = min(p, prompt), min(done, completion)
        rows.append((hour, prompt, cached if cached is None else min(cached, prompt), completion))
    rows.reverse()
    return f'"{orjson.dumps(rows).decode()}"'
