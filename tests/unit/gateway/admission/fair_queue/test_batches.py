"""Batches' lines in the fair queue: they change nothing for anybody else."""

from __future__ import annotations

import math

from adapters.placement.scheduling.view import Ask, EngineView
from gateway.admission.fair_queue.fleet_queue import BATCH, FleetQueue
from gateway.admission.fair_queue.waiting import Fit, Waiter


def engine(credit: int, in_flight: int = 0) -> EngineView:
    return EngineView("a", slots=4, cpu_slots=0, max_rank=8, in_flight=in_flight)


def waiter(tenant: str = "acme", level: int = 1) -> Waiter:
    return Waiter(tenant, 1.0, level, "lane", 0.0)


def test_a_quarter_of_an_engine_is_left_to_others():
    for credit, filled in ((1, 1), (2, 1), (4, 3), (16, 12), (256, 192)):
        queue, view = FleetQueue(), engine(credit)
        queue.divide([(view, credit)], 0.0)
        assert view.filled == filled
        view.in_flight = filled
        assert view.refuses(Ask("", fills=True))
        assert view.refuses(Ask("")) == (filled == credit)
        view.in_flight = filled - 1
        assert not view.refuses(Ask("", fills=True))


def test_lines_go_last_and_hold_up_nobody():
    queue = FleetQueue()
    line, low = waiter(level=BATCH), waiter("bolt", 2)
    queue.push(line)
    assert all(queue.passes(level) for level in range(BATCH))
    assert not queue.passes(BATCH)
    queue.push(low)
    assert queue.next(lambda _: Fit.READY) is low
    queue.waiting.remove(low, served=True)
    assert queue.next(lambda _: Fit.READY) is line


def test_other_workers_and_shares_know_nothing_of_lines():
    queue, view = FleetQueue(), engine(8)
    for _ in range(6):
        queue.begin("acme", 1.0, BATCH, 100, 0.0)
    for _ in range(20):
        queue.push(waiter(level=BATCH))
    queue.divide([(view, 8)], 0.0)
    assert queue.report() == []
    assert (queue.started, queue.pressing, queue.contended) == (0, 0, False)
    assert not queue.yields("bolt", 1)
    queue.hear({"other": [[1, "bolt", 2, 1, 1.0, 0, 0]]}, 1.0)
    assert queue.pressing == 2
    queue.divide([(view, 8)], 1.0)
    assert queue.quota != math.inf
    assert queue.started == 0  # lines use up nobody's quota


def test_lines_do_not_tell_how_long_others_take():
    queue = FleetQueue()
    slow = queue.begin("acme", 1.0, BATCH, 100, 0.0)
    queue.end(slow, 100, 100, 600.0, answered=True)
    assert queue.duration == 0.0
    quick = queue.begin("bolt", 1.0, 1, 100, 600.0)
    queue.end(quick, 100, 10, 601.0, answered=True)
    assert queue.duration == 1.0
