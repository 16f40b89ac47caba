"""What is counted of an answer that its engine reports at the end only, if it does not come to the end."""

from __future__ import annotations

import pytest

from gateway.costs.rollups.attribution import Attempt, HourInput, divide
from gateway.metering import attempt as attempt_module
from gateway.metering.attempt import AttemptMeter, Names
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.output_estimate import PRIOR_SPEED, RANGE, AnswerSpeed
from gateway.metering.records import Outcome, UsageRecord, orphaned, parse_line
from gateway.metering.token_counts import MAX_TOKENS_PER_CHOICE
from gateway.runtime.clock import Clock
from gateway.units import HOUR

NAMES: Names = ("acme", "k1", "acme/support", "v3", "base", "gpu-a", "H100", 1)
SECOND = 1_000_000_000


def sample(second: float, tokens: int, *, epoch: int = 1) -> EngineSample:
    return EngineSample(
        at=int(second * 1e6),
        epoch=epoch,
        ready=None,
        prompt_tokens=1,
        cached_tokens=None,
        completion_tokens=tokens,
    )


def watched(*seen: tuple[float, int, int]) -> AnswerSpeed:
    """After (second, tokens, running) each."""
    speed = AnswerSpeed()
    for second, tokens, running in seen:
        speed.sampled(sample(second, tokens), running)
    return speed


def steady(tokens_a_second: int, running: int) -> AnswerSpeed:
    return watched(*((3 * n, 3 * n * tokens_a_second, running) for n in range(100)))


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (AnswerSpeed(), PRIOR_SPEED),
        (steady(40, 1), 40),
        (steady(400, 8), 50),
        # It counts an answer at its end only.
        (watched(*((3 * n, 300 * (n // 10), 1) for n in range(1000))), 10),
        # It rests between short answers.
        (watched(*((3 * n, 60 * n, n % 10 == 0) for n in range(1000))), 200),
        (watched(*((3 * n, 0, 1) for n in range(100))), PRIOR_SPEED),
        (steady(10**9, 1), PRIOR_SPEED * RANGE),
        (steady(1, 10_000), PRIOR_SPEED / RANGE),
    ],
    ids=["unknown", "one", "eight", "at its end", "in bursts", "nothing", "too fast", "too slow"],
)
def test_the_speed_is_that_of_the_engines_counter(speed: AnswerSpeed, expected: float):
    assert speed.value == pytest.approx(expected, rel=0.25)


def test_what_happened_between_two_processes_or_two_distant_samples_is_not_known():
    speed = AnswerSpeed()
    for n in range(100):
        speed.sampled(sample(3 * n, 10**6 * n, epoch=n + 1), 1)
        speed.sampled(sample(3 * n + 1, 0, epoch=n + 1), 1)
    assert speed.value == pytest.approx(PRIOR_SPEED)
    assert watched(*((100 * n, n, 1) for n in range(100))).value == pytest.approx(PRIOR_SPEED)


class Played:
    """One attempt on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, n: int = 1, prompts: int = 1) -> None:
        self.clock = Clock()
        self.lines: list[bytes] = []
        self.now = SECOND
        monkeypatch.setattr(attempt_module, "monotonic_ns", lambda: self.now)
        self.attempt = AttemptMeter(self, "r", 1, NAMES, n=n, prompts=prompts, adapter_loads=0, estimate=1)

    def finished(self, _: AttemptMeter, line: bytes) -> None:
        self.lines.append(line)

    async def settled(self) -> None: ...

    def end(self, outcome: Outcome, **how: bool) -> UsageRecord:
        self.attempt.end(outcome, **{"billable": True, "exact": False, **how})
        [line] = self.lines
        return parse_line(line)


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_ABORT, Outcome.FAILOVER, Outcome.ORPHANED])
@pytest.mark.parametrize(
    ("seconds", "choices", "most", "expected"),
    [
        (3, (1, 1), 400, 120),
        (30, (1, 1), 400, 400),
        (3, (2, 3), 400, 720),
        (0, (1, 1), 400, 0),
        (3, (1, 1), None, 120),
        (10**6, (1, 1), 10**30, MAX_TOKENS_PER_CHOICE),
    ],
)
def test_output_nobody_counted_is_what_an_answer_gets_in_the_time(
    monkeypatch, outcome, seconds, choices, most, expected
):
    played = Played(monkeypatch, n=choices[0], prompts=choices[1])
    played.attempt.reports_at_end(steady(40, 1), most=most)
    played.now += seconds * SECOND
    record = played.end(outcome)
    assert record.completion_tokens == pytest.approx(expected, rel=0.01)
    assert record.usage_source == "estimated"
    assert played.attempt.billed[2] == record.completion_tokens


@pytest.mark.parametrize("most", [None, 10**6])
def test_no_answer_is_longer_than_the_context(monkeypatch, most):
    played = Played(monkeypatch)
    played.attempt.reports_at_end(steady(40, 1), most=most, context=8192)
    played.now += 600 * SECOND  # it waited in the engine's queue
    assert played.end(Outcome.CLIENT_ABORT).completion_tokens == 8192


def test_it_stays_what_it_was_when_the_attempt_ended(monkeypatch):
    played, speed = Played(monkeypatch), steady(40, 1)
    played.attempt.reports_at_end(speed, most=None)
    played.now += 3 * SECOND
    record = played.end(Outcome.CLIENT_ABORT)
    for n in range(100, 200):
        speed.sampled(sample(3 * n, 10**6 * n), 1)
    carried = parse_line(played.attempt.checkpoint())
    assert played.attempt.tokens[2] == record.completion_tokens == carried.completion_tokens > 0


def test_a_worker_that_dies_leaves_the_estimate_of_its_last_checkpoint(monkeypatch):
    played = Played(monkeypatch)
    played.attempt.reports_at_end(steady(40, 1), most=400)
    assert parse_line(played.attempt.intent()).completion_tokens == 0
    played.now += 5 * SECOND
    assert orphaned(parse_line(played.attempt.checkpoint())).completion_tokens == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize(
    ("counts", "outcome", "worked", "expected"),
    [
        ((7, 5, None, 0), Outcome.CLIENT_ABORT, True, 5),
        (None, Outcome.FAILOVER, False, 0),
        (None, Outcome.OK, True, 0),  # a complete answer without sound counts bills nobody
    ],
    ids=["counted", "never reached", "answered"],
)
def test_it_replaces_no_count_and_invents_no_work(monkeypatch, counts, outcome, worked, expected):
    played = Played(monkeypatch)
    played.attempt.reports_at_end(steady(40, 1), most=None)
    played.now += 30 * SECOND
    if counts:
        played.attempt.observe(*counts)
    assert played.end(outcome, worked=worked).completion_tokens == expected


def test_whoever_kept_the_engine_busy_pays_for_it(monkeypatch):
    """A leaves after half a minute without an answer; B gets a short one."""
    played = Played(monkeypatch)
    played.attempt.reports_at_end(AnswerSpeed(), most=4096)
    played.now += 30 * SECOND
    a = played.end(Outcome.CLIENT_ABORT)
    start = a.dispatched - a.dispatched % HOUR
    shared = [
        Attempt("a", start, start + 30_000_000, a.prompt_tokens, a.cached_tokens, a.completion_tokens),
        Attempt("b", start + 30_000_000, start + 31_000_000, 20, None, 12),
    ]
    [piece] = divide(HourInput(hour=start, gpus=1), shared)
    assert piece.shares[0] > 50 * piece.shares[1]
