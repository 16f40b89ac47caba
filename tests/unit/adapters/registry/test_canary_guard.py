"""The guard's decision: it looks all the time, and neither noise nor trouble of all versions stops a canary."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.model import Guard
from adapters.registry.canary_figures import SLICES, Arm, Slice, bucket, quantile, read, seconds, together
from adapters.registry.canary_guard import ALPHA, Judgement, judge
from tests.support.search import examples

GUARD = Guard("rollback", min_requests=20)
AGE = 600.0


def arm(requests: int = 0, failures: int = 0, first: float = 0.0, token: float = 0.0) -> Arm:
    """With one latency, in seconds, for all that did not fail."""
    answered = requests - failures
    return Arm(
        requests,
        failures,
        {bucket(int(first * 1e9)): answered} if first else {},
        {bucket(int(token * 1e9)): answered} if token else {},
    )


def verdict(canary: Arm, live: Arm, guard: Guard = GUARD, *, age: float = AGE, weight: int = 10) -> Judgement:
    return judge(guard, weight, [Slice(0, live, canary)], age=age)


# -- errors


@pytest.mark.parametrize(
    ("canary", "live", "expected"),
    [
        (arm(19, 19), arm(200), "waiting"),
        (arm(20, 20), arm(200), "rollback"),
        (arm(200, 10), arm(1800), "rollback"),
        (arm(200, 1), arm(1800), "keep"),  # half of what the guard allows
        (arm(200, 10), arm(1800, 90), "keep"),  # everything fails as often
        (arm(200, 2), arm(20_000), "keep"),  # more than live, but no more than is allowed
        (arm(200, 200), arm(0), "keep"),  # with nothing to compare with, nothing is shown
        (arm(200), arm(1800, 1800), "keep"),
    ],
)
def test_errors(canary: Arm, live: Arm, expected: str):
    assert verdict(canary, live).verdict == expected


def test_the_reason_has_the_figures_and_the_guard_chooses_what_happens():
    found = verdict(arm(200, 10), arm(1800, 2), replace(GUARD, action="hold"))
    assert found == Judgement(
        "hold",
        "5.0% of its 200 requests failed, and 0.1% of the live version's 1,800; the guard allows 1.0%.",
    )


def test_trouble_in_one_slice_of_both_versions_is_not_the_canarys():
    """A canary that got more requests while an engine was sick, and few before, is not blamed for that."""
    slices = [Slice(0, arm(9_000), arm(10)), Slice(1, arm(90, 45), arm(90, 45))]
    assert together(s.canary for s in slices).error_rate > 0.4
    assert together(s.live for s in slices).error_rate < 0.01
    assert judge(GUARD, 10, slices, age=AGE).verdict == "keep"


def test_a_canary_that_turns_bad_late_is_stopped():
    fine = [Slice(i, arm(9_000, 9), arm(1_000, 1)) for i in range(15)]
    assert judge(GUARD, 10, fine, age=AGE).verdict == "keep"
    bad = [Slice(i, arm(900, 1), arm(100, 20)) for i in (15, 16)]
    assert judge(GUARD, 10, [*fine, *bad], age=AGE).verdict == "rollback"
    assert judge(GUARD, 10, [*fine, *bad], age=10 * GUARD.window_seconds).verdict == "rollback"


# -- latency


@pytest.mark.parametrize(
    ("canary", "live", "expected"),
    [
        (arm(60, first=0.5), arm(540, first=0.1), "rollback"),
        (arm(60, token=0.5), arm(540, token=0.1), "rollback"),
        (arm(60, first=0.14), arm(540, first=0.1), "keep"),
        (arm(60, first=0.1), arm(540, first=0.5), "keep"),
        (arm(540, first=0.5), arm(60, first=0.1), "rollback"),  # most of the requests are the canary's
        (arm(60, first=0.5), arm(540), "keep"),  # the live version's are not known
    ],
)
def test_latency(canary: Arm, live: Arm, expected: str):
    assert verdict(canary, live).verdict == expected


def test_a_slow_tail_alone_stops_it():
    slow, fast = bucket(int(3e9)), bucket(int(1e8))
    canary = Arm(300, 0, {fast: 220, slow: 80})
    live = Arm(2700, 0, {fast: 2690, slow: 10})
    found = verdict(canary, live)
    assert found.verdict == "rollback"
    assert found.reason.startswith("The 95% quantile of its time to the first token is 2.9 s")


# -- what else decides


def test_a_failed_evaluation_decides_at_once():
    found = judge(GUARD, 10, [], age=0, evaluation="failed")
    assert found == Judgement("rollback", "Its evaluation failed.")
    assert judge(GUARD, 10, [], age=0, evaluation="passed").verdict == "waiting"


def test_the_next_weight_follows_a_clean_window_only():
    guard = replace(GUARD, then=(50, 100))
    over = float(guard.window_seconds)
    canary, live = arm(200, 1, first=0.1), arm(1800, 5, first=0.1)
    assert verdict(canary, live, guard, age=over - 1).verdict == "keep"
    promoted = verdict(canary, live, guard, age=over)
    assert (promoted.verdict, promoted.weight) == ("promote", 50)
    assert verdict(canary, live, guard, age=over, weight=50).weight == 100
    assert verdict(canary, live, guard, age=over, weight=99).weight == 100
    assert verdict(arm(10), live, guard, age=over).verdict == "waiting"
    # Not shown to be worse, and yet no better than what is allowed:
    fast, slow = bucket(10**8), bucket(2 * 10**8)
    mixed = Arm(30, 0, {fast: 16, slow: 14})
    for doubtful in (arm(200, 3, first=0.1), Arm(20, 0, {fast: 9, slow: 11})):
        found = verdict(doubtful, mixed, guard, age=over)
        assert (found.verdict, found.reason[:17]) == ("keep", "Not raised to 50 ")


# -- the promises of the statistics


def looks(rng: random.Random, canary_fails: float, live_fails: float, share: float, requests: int) -> int:
    """The canary's requests until it was stopped, with a look after every tenth request; 0: it was not."""
    slices: list[Slice] = []
    per_slice = requests // SLICES
    for number in range(requests):
        if number % per_slice == 0:
            slices.append(Slice(len(slices), Arm(), Arm()))
        canary = rng.random() < share
        one = slices[-1].canary if canary else slices[-1].live
        one.requests += 1
        one.failures += rng.random() < (canary_fails if canary else live_fails)
        if number % 10 == 9 and judge(GUARD, 10, slices, age=AGE).verdict == "rollback":
            return together(s.canary for s in slices).requests
    return 0


def test_equal_versions_are_hardly_ever_stopped_however_often_one_looks():
    """A test for one look, at the 1 % level, would stop a tenth of these."""
    rng = random.Random(17)
    runs = 150
    stopped = sum(
        looks(rng, 0.05, 0.05, share, 600) > 0 for share in (0.1, 0.5, 0.9) for _ in range(runs // 3)
    )
    assert stopped <= 2 * ALPHA * runs


def test_five_percent_of_errors_are_found_within_some_hundred_requests():
    rng = random.Random(17)
    needed = sorted(looks(rng, 0.05, 0.0, 0.5, 2000) for _ in range(11))
    assert needed[0] > 0
    assert needed[5] < 300


arms = st.builds(
    lambda n, k, f, t: Arm(n + k, k, f, t),
    st.integers(0, 500),
    st.integers(0, 500),
    st.dictionaries(st.integers(0, 400), st.integers(1, 50), max_size=5),
    st.dictionaries(st.integers(0, 400), st.integers(1, 50), max_size=5),
)
slices_ = st.lists(st.tuples(arms, arms), max_size=SLICES).map(
    lambda pairs: [Slice(i, live, canary) for i, (live, canary) in enumerate(pairs)]
)


@examples(30)
@given(slices_, st.floats(0, 1e6))
def test_a_canary_never_fares_worse_for_the_live_versions_failures(slices: list[Slice], age: float):
    """And whatever is counted, there is a verdict."""
    before = judge(GUARD, 10, slices, age=age).verdict
    worse = [
        Slice(
            s.index,
            Arm(s.live.requests + 100, s.live.failures + 100, s.live.first_token, s.live.per_token),
            s.canary,
        )
        for s in slices
    ]
    after = judge(GUARD, 10, worse, age=age)
    if before == "keep":
        assert after.verdict == "keep" or "time" in after.reason


@examples(30)
@given(slices_)
def test_a_version_compared_with_itself_is_kept(slices: list[Slice]):
    same = [Slice(s.index, s.canary, s.canary) for s in slices]
    assert judge(GUARD, 50, same, age=AGE).verdict in ("waiting", "keep")


# -- the figures


@given(st.integers(1, 10**13))
def test_a_bucket_is_right_within_five_percent(nanoseconds: int):
    if nanoseconds > 1000:
        assert abs(seconds(bucket(nanoseconds)) * 1e9 / nanoseconds - 1) < 0.05


def test_quantiles_of_histograms():
    assert quantile({}, 0.5) is None
    assert quantile({3: 1}, 0.95) == 3
    assert quantile({1: 50, 2: 45, 9: 5}, 0.5) == 1
    assert quantile({1: 50, 2: 45, 9: 5}, 0.95) == 2
    assert quantile({1: 50, 2: 44, 9: 6}, 0.95) == 9


def test_counts_are_read_and_what_is_unknown_is_ignored():
    counts = {
        "3 live n": 7, "3 live k": 1, "3 canary f200": 2, "4 canary n": 5, "4 canary t90": 4, "2 live n": 9,
        "4 canary z9": 1, "4 other n": 1, "x live n": 1, "": 1, "4": 1, "4 canary ": 1, "4 canary fx": 1,
    }  # fmt: skip
    assert read(counts, after=2) == [
        Slice(3, Arm(7, 1), Arm(first_token={200: 2})),
        Slice(4, Arm(), Arm(5, per_token={90: 4})),
    ]
