"""What a request has met on its way decides how often it is tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.routing.queue_ticket import QueueTicket
from gateway.routing.routing_state import RoutingState


@pytest.mark.parametrize(("died", "deadly"), [((), False), ((1,), False), ((1, 0), False), ((1, 1), True)])
def test_a_request_of_which_two_engines_died_is_deadly(died: tuple[int, ...], deadly: bool):
    target: Any = None
    losses: list[Any] = [(SimpleNamespace(deaths=7 + deaths), 7) for deaths in died]
    assert RoutingState(target, target, QueueTicket(), 0.0, losses=losses).deadly is deadly
