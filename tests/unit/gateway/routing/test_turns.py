"""How long requests wait for their turn, and what they are told."""

from __future__ import annotations

import itertools

import pytest

from adapters.registry.catalog import Catalog
from gateway.admission.fair_queue.fleet_queue import FleetQueue
from gateway.admission.fair_queue.waiting import Fit
from gateway.errors import FlorinError
from gateway.routing import turns as turns_module
from gateway.routing.pool import Pool
from gateway.routing.queue_refusals import START_RETRY_SECONDS, QueueLimits, no_room
from gateway.routing.queue_ticket import QueueTicket
from gateway.routing.turns import Lack, Turns
from tests.support.waiting import PATIENCE_S

SOON = 0.01


async def refused(limits: QueueLimits, *lacks: Lack) -> FlorinError:
    """What a request is told that lacks these, and the last for ever."""
    turns = Turns(Pool(Catalog()), limits=limits)
    queue = turns.queue("base")
    lack = itertools.chain(lacks, itertools.repeat(lacks[-1]))
    with pytest.raises(FlorinError) as caught:
        await turns.wait(
            queue, QueueTicket("acme"), "", lambda: Fit.NO, lambda: pytest.fail("none"), lambda: next(lack)
        )
    assert (turns.waiting, len(queue.waiting)) == (0, 0)
    return caught.value


async def test_the_wait_for_an_engine_to_start_has_its_own_bound():
    error = await refused(QueueLimits(timeout=0, start_timeout=SOON), Lack.ENGINE)
    assert (error.code, error.retry_after) == ("no_engine", START_RETRY_SECONDS)
    assert error.message.startswith("No engine of base is up, and none has started within 0.0")


async def test_and_leaves_the_whole_time_for_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns_module, "CHECK_SECONDS", SOON)
    limits = QueueLimits(timeout=5 * SOON, start_timeout=PATIENCE_S)
    starting = [Lack.ENGINE] * 10
    error = await refused(limits, *starting, Lack.ROOM)
    assert error.code == "overloaded"
    waited = float(error.message.split(" within ")[1].split()[0])
    assert waited >= (len(starting) - 1 + 5) * SOON * 0.9


def test_half_of_a_worker_s_places_are_for_requests_whose_engines_are_up():
    queue, limits, ticket = FleetQueue("base"), QueueLimits(of_worker=4), QueueTicket("acme")
    assert no_room(queue, limits, ticket, 1, starting=True) is None
    refusal = no_room(queue, limits, ticket, 2, starting=True)
    assert refusal is not None
    assert (refusal.reason, refusal.error.code) == ("worker_limit", "worker_full")
    assert no_room(queue, limits, ticket, 3, starting=False) is None


async def test_the_limits_of_requests_that_wait_hold_there_too():
    error = await refused(QueueLimits(of_tenant=0, start_timeout=PATIENCE_S), Lack.ENGINE)
    assert (error.code, error.retry_after) == ("queue_full", START_RETRY_SECONDS)
