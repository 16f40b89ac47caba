import pytest

from gateway.admission.fair_queue.fleet_queue import FleetQueue


def test_a_guess_that_would_refuse_is_a_careful_one():
    """Most answers have been long, and the next may be short: nobody is refused because of the long ones."""
    queue = FleetQueue()
    for number, seconds in enumerate([6.0] * 12 + [0.4] * 8):
        charge = queue.begin("a", 1.0, 1, 10, 100.0 * number)
        queue.end(charge, 10, 10, 100.0 * number + seconds, answered=True)
    assert queue.duration == pytest.approx(0.4)
    assert queue.rate(10_000.0) == pytest.approx(1 / 0.4)
