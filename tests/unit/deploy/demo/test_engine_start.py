"""How long an engine of the demo may take to start: as long as it computes."""

from __future__ import annotations

from deploy.demo.engines import START_CPU_SECONDS, START_TIMEOUT_S, Progress


def test_an_engine_that_computes_may_take_as_long_as_the_machine_needs():
    progress = Progress()
    assert all(progress.made(minutes * 2.0, minutes * 60.0) for minutes in range(100))


def test_one_that_does_nothing_or_computes_without_end_is_given_up():
    progress = Progress()
    assert progress.made(5.0, 1.0)
    assert progress.made(5.9, START_TIMEOUT_S + 1.0)
    assert not progress.made(5.9, START_TIMEOUT_S + 2.0)
    assert not Progress().made(START_CPU_SECONDS + 1.0, 10.0)
