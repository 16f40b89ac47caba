from __future__ import annotations

import pytest

from gateway.batches.retries import LONGEST_PAUSE, LONGEST_WAIT, MOST_FAILURES, Decision, Verdict, decide


def after(status: int, code: str = "", retry_after: float | None = None, **past: int) -> Decision:
    return decide(status, code, retry_after, **{"failures": 0, "waits": 0} | past)


def test_answers_and_mistakes_are_final():
    assert after(200).verdict is Verdict.ANSWERED
    for status in (400, 401, 404, 413, 422):
        assert after(status).verdict is Verdict.REFUSED


def test_limits_hold_up_the_whole_batch_and_overload_one_line():
    limited = after(429, "rate_limit_exceeded", 7)
    assert (limited.verdict, limited.pause, limited.everyone) == (Verdict.AGAIN, 7, True)
    assert after(503, "no_engine").everyone is False
    assert after(403, "tenant_suspended").verdict is Verdict.AGAIN
    assert after(403, "insufficient_scope").verdict is Verdict.REFUSED


def test_pauses_grow_up_to_a_bound():
    pauses = [after(503, waits=n).pause for n in range(100)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert after(429, retry_after=10**9).pause == LONGEST_WAIT
    assert after(429, retry_after=1, waits=50).pause == 1  # it says when


@pytest.mark.parametrize("status", [500, 502, 504])
def test_failures_are_repeated_a_few_times(status: int):
    verdicts = [after(status, failures=n).verdict for n in range(MOST_FAILURES)]
    assert verdicts == [Verdict.AGAIN] * (MOST_FAILURES - 1) + [Verdict.REFUSED]
