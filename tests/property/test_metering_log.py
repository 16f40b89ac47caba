"""Whatever happens to the log of a worker that dies, each attempt comes out of it once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering import attempt as attempt_module
from gateway.metering.attempt import AttemptMeter
from gateway.metering.ledger.ledger import Inserted
from gateway.metering.records import Outcome, UsageRecord, orphaned, parse_line
from gateway.metering.wal.segments import WorkerDirectory
from gateway.metering.wal.shipper import Shipper
from gateway.observability.metrics import Metrics
from gateway.units import HOUR
from tests.support.search import examples
from tests.unit.gateway.metering.make import LogStub, intent, record


class MemoryLedger:
    """A ledger in a dict, as strict as the real one."""

    def __init__(self) -> None:
        self.rows: dict[str, UsageRecord] = {}
        self.quarantined: list[UsageRecord] = []

    def insert(self, records: list[UsageRecord]) -> Inserted:
        for made in records:
            if self.rows.setdefault(made.id, made) != made:
                self.quarantined.append(made)
        return Inserted(len(records))


steps = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["checkpoint", "final", "carry"])), max_size=40)


def written(todo: list[tuple[int, str]]) -> list[list[UsageRecord]]:
    """Segments of a log as a worker writes them: intents at first sight, checkpoints while an attempt is open,
    finals once; `carry` begins a new segment with what is open, and repeats the last line, as after a failed
    sync."""
    segments: list[list[UsageRecord]] = [[]]
    seqs: dict[int, int] = {}
    done: set[int] = set()

    def line(number: int, seq: int) -> UsageRecord:
        return intent(f"r{number}", seq=seq, completion_tokens=seq, seen=100 * HOUR + seq)

    for number, what in todo:
        if what == "carry":
            last = segments[-1][-1:]
            segments.append([line(n, seqs[n]) for n in seqs if n not in done] + last)
        elif number not in done:
            seqs[number] = seqs.get(number, -1) + 1
            segments[-1].append(line(number, seqs[number]))
            if what == "final":
                done.add(number)
                segments[-1].append(record(f"r{number}"))
    return segments


@examples(30)
@given(steps, st.integers(0, 10**6), st.integers(1, 3))
def test_a_log_that_ends_anywhere_gives_each_attempt_once(todo, cut, times):
    root = Path(tempfile.mkdtemp())
    try:
        segments = [b"".join(r.line() for r in records) for records in written(todo)]
        whole = b"".join(segments)
        cut %= len(whole) + 1
        directory = WorkerDirectory.create(root, "dead")
        left = cut
        for number, content in enumerate(segments, 1):
            directory.segment(number).write_bytes(content[:left])
            left = max(0, left - len(content))
        kept = root / ".kept"
        shutil.copytree(directory.path, kept)
        directory.release()

        mine, shelf = WorkerDirectory.create(root, "mine"), MemoryLedger()
        shipper = Shipper(root, mine, LogStub(), shelf, Metrics())  # type: ignore[arg-type]  # as much of a ledger as it needs
        for _ in range(times):  # found again, as after a commit whose note was lost
            if not (root / "dead").exists():
                shutil.copytree(kept, root / "dead")
            assert shipper.flush_now(patience=60)
        mine.release()

        expected: dict[str, UsageRecord] = {}
        for text in whole[:cut].splitlines():
            try:
                found = parse_line(text)
            except ValueError:
                continue  # the torn end
            if expected.get(found.id, found).kind != "final":
                expected[found.id] = found
            expected.setdefault(found.id, found)
        assert shelf.rows == {k: r if r.kind == "final" else orphaned(r) for k, r in expected.items()}
        assert shelf.quarantined == []
    finally:
        shutil.rmtree(root)


class Clock:
    """Stands in for the module's two clocks."""

    def __init__(self) -> None:
        self.micros = 100 * HOUR

    era = 0

    def now_ns(self) -> int:
        return self.micros * 1000

    def steady(self) -> int:
        return self.micros * 1000 + 1


class Sink:
    """A meter that keeps the final."""

    line = b""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def finished(self, _: object, line: bytes) -> None:
        self.line = line


moments = st.lists(
    st.tuples(st.integers(0, HOUR), st.sampled_from(["observe", "checkpoint", "both"]), st.integers(0, 50)),
    max_size=12,
)


@given(moments, st.integers(0, HOUR), st.integers(0, 2 * HOUR))
def test_hour_marks_are_complete_ascending_and_cumulative(moments, until_first, until_end):
    clock = Clock()
    sink = Sink(clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_module, "monotonic_ns", clock.steady)
        names = ("acme", "k", "", "", "base", "e", "H100", 1)
        attempt = AttemptMeter(sink, "r", 1, names, n=1, adapter_loads=0, estimate=3)  # type: ignore[arg-type]  # as much of a meter as it needs
        clock.micros += until_first
        attempt.first_token()
        completion = 0
        for pause, what, more in moments:
            clock.micros += pause
            if what != "checkpoint":
                completion += more
                attempt.observe(9, completion, None, 0)
            if what != "observe":
                parsed = parse_line(attempt.checkpoint())
                marks = orjson.loads(parsed.hour_marks or "[]")
                assert all(mark[3] <= parsed.completion_tokens for mark in marks)
        clock.micros += until_end
        attempt.end(Outcome.OK, billable=True, exact=True)
    final = parse_line(sink.line)
    marks = orjson.loads(final.hour_marks or "[]")
    assert [mark[0] for mark in marks] == list(range(101 * HOUR, (final.ended or 0) + 1, HOUR))
    ends = [0, 0, *(count for mark in marks for count in (mark[1], mark[3]))]
    ends += [final.prompt_tokens, final.completion_tokens]
    assert ends[::2] == sorted(ends[::2])
    assert ends[1::2] == sorted(ends[1::2])
