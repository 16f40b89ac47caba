"""Engines' counters against records: each rule by itself."""

from dataclasses import replace

from gateway.costs.periods import Period
from gateway.costs.reconciliation.counters import (
    BROKEN_OFF,
    ORPHANED,
    REASONS,
    CounterSample,
    ProbeTokens,
    TokenTally,
    Window,
    check,
    outside,
    windows,
)

WINDOW = Window("a", 5, 10, 20, input=100, output=50, cached=30)
EXACT = TokenTally(
    records=4, several=2, cached_unsure=3, input=100, input_n=100, output=50, cached=30, cached_n=30, answers=4,
    largest_input=40, largest_output=20,
)  # fmt: skip  # as they are declared
NONE = TokenTally()


def lines(found):
    assert found.engine_tokens - found.record_tokens == sum(line.tokens for line in found.lines) + found.rest
    assert all(line.low <= line.tokens <= line.high and line.kind in REASONS for line in found.lines)
    return {line.kind: line.tokens for line in found.lines}


def run(ended, of="input", at_start=NONE, at_end=NONE, **counted):
    return check(replace(WINDOW, **counted), ended, at_start, at_end, of)


def test_the_engine_counts_a_prompt_for_each_of_its_answers():
    several = replace(EXACT, input_n=180, cached_n=110)
    found = run([several], input=180)
    assert (lines(found), found.rest) == ({"prompt_of_each_answer": 80}, 0)
    assert run([several], input=179).rest == -1  # exact, not a bound
    cached = run([several], "cached", cached=95)
    assert (lines(cached), cached.rest) == ({"cached_not_told": 65}, 0)


def test_of_broken_off_attempts_with_several_answers_perhaps_not_all_had_begun():
    partial = replace(EXACT, source="engine_partial", input_n=180)
    assert lines(run([partial], input=140)) == {"prompt_of_each_answer": 40}
    assert run([partial], input=181).rest == 1


def test_what_was_in_flight_at_a_sample_was_counted_in_part():
    at_start = replace(NONE, records=2, input=30, input_n=30)
    found = run([EXACT], input=75, at_start=at_start)
    assert (lines(found), found.rest) == ({"in_flight_at_start": -25}, 0)
    assert run([EXACT], input=65, at_start=at_start).rest == -5
    at_end = replace(NONE, records=1, input=10, input_n=20)
    found = run([EXACT], input=115, at_end=at_end)
    assert (lines(found), found.rest) == ({"in_flight_at_end": 15}, 0)
    assert run([EXACT], input=121, at_end=at_end).rest == 1


def test_an_engine_goes_on_for_a_moment_after_a_client_has_left():
    partial = replace(EXACT, source="engine_partial", answers=2)
    found = run([partial], "output", output=55)
    assert (lines(found), found.rest) == ({"broken_off": 5}, 0)
    assert run([partial], "output", output=51 + 2 * BROKEN_OFF).rest == 1
    assert run([partial], input=105).rest == 5  # of the prompt, all is told at once
    orphaned = replace(partial, orphaned=True)
    assert lines(run([orphaned], "output", output=50 + ORPHANED)) == {"orphaned": ORPHANED}


def test_without_counts_at_most_the_largest_that_was_seen():
    unseen = TokenTally(source="none", records=2, answers=2)
    found = run([EXACT, unseen], input=150)
    assert (lines(found), found.rest) == ({"without_counts": 50}, 0)
    assert run([EXACT, unseen], input=181).rest == 1
    assert run([EXACT, unseen], "output", output=50 + 2 * BROKEN_OFF + 1).rest == 1


def test_what_nothing_explains_is_the_rest():
    assert run([EXACT], input=117).rest == 17
    assert run([EXACT], input=0).rest == -100
    assert run([], input=17).rest == 17


def sample(at, tokens, epoch=5, cached=0):
    return CounterSample("a", epoch, at, tokens, tokens // 2, cached)


def test_windows_are_what_was_counted_since_the_sample_before_or_the_epoch():
    made = windows([sample(10, 100)], [sample(20, 160), sample(30, 40, epoch=25)])
    assert [(w.epoch, w.start, w.end, w.input, w.output) for w in made] == [
        (5, 10, 20, 60, 30),
        (25, 25, 30, 40, 20),
    ]


def test_what_no_window_covers():
    at = replace(WINDOW, start=10, end=20)
    later = replace(WINDOW, start=30, end=40)
    assert outside(Period(0, 50), [later, at]) == [Period(0, 11), Period(21, 31), Period(41, 50)]
    assert outside(Period(15, 35), [at, later]) == [Period(21, 31)]
    assert outside(Period(12, 20), [at]) == []
    assert outside(Period(0, 5), []) == [Period(0, 5)]


def test_what_florin_asked_for_itself_is_no_record_and_no_riddle():
    own = ProbeTokens(count=2, input=120, output=64, cached=3)
    for of, tokens in (("input", 120), ("output", 64), ("cached", 3)):
        counted = {"input": 220, "output": 114, "cached": 33}
        found = check(replace(WINDOW, **counted), [EXACT], NONE, NONE, of, own)
        assert (lines(found), found.rest) == ({"verification": tokens}, 0)
    assert check(WINDOW, [EXACT], NONE, NONE, "input", own).rest == -120  # exact, not a bound


def test_an_estimate_may_be_wrong_in_both_directions():
    guess = TokenTally(source="estimated", records=1, input=10, input_n=10, answers=1)
    assert lines(run([EXACT, guess], input=103)) == {"estimated": -7}
    assert lines(run([EXACT, guess], input=118)) == {"estimated": 8}
    assert run([EXACT, guess], input=99).rest == -1


def test_what_the_engine_does_not_count_is_not_checked():
    assert check(replace(WINDOW, cached=None), [EXACT], NONE, NONE, "cached") is None


def test_a_window_without_cached_counts_at_either_end_has_none():
    [window] = windows([sample(10, 100, cached=None)], [sample(20, 160)])
    assert window.cached is None


def test_an_epoch_after_the_sample_by_the_engines_own_clock_is_no_negative_window():
    [window] = windows([], [sample(20, 40, epoch=25)])
    assert (window.start, window.end) == (20, 20)
