"""What `python -m loadtests.recovery` makes of what clients saw."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtests.recovery.__main__ import _row
from loadtests.recovery.clients import Asked, recovered
from loadtests.recovery.incidents import Outcome


def asked(*ends: tuple[float, int]) -> list[Asked]:
    return [Asked(ended - 0.5, ended, status) for ended, status in ends]


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([(9.0, 503), (11.0, 200), (12.0, 200)], 1.0),  # nothing has failed since
        ([(11.0, 503), (12.0, 200), (13.0, 503), (15.0, 200)], 5.0),  # it was not over yet
        ([(12.0, 200), (15.0, 0)], None),
        ([(9.0, 200)], None),  # answered before
        ([], None),
    ],
)
def test_clients_have_recovered_when_one_is_answered_after_the_last_failure(ends, found):
    assert recovered(asked(*ends), since=10.0) == found


def test_a_row_tells_median_and_worst_of_all_runs_and_how_requests_failed():
    outcomes = [
        Outcome(10, Counter(no_worker=2), {"a_to_b": [1.0]}),
        Outcome(20, Counter(no_worker=1, no_answer=1), {"a_to_b": [5.0]}),
        Outcome(30, Counter(), {"a_to_b": [2.0]}),
    ]
    assert _row("crash-loop", outcomes) == {
        "incident": "crash-loop",
        "runs": 3,
        "asked": 60,
        "failed": {"no_worker": 3, "no_answer": 1},
        "seconds": {"a_to_b": {"median": 2.0, "worst": 5.0}},
    }
