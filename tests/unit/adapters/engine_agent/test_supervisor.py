"""Restarts of an engine."""

from __future__ import annotations

from adapters.engine_agent.supervisor import Backoff


def test_backoff_doubles_to_a_minute_and_begins_anew_after_five_healthy_ones():
    backoff = Backoff()
    assert [backoff.after(0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.after(299) == 60
    assert [backoff.after(301), backoff.after(0)] == [1, 2]
