"""Blocks requests that may have killed engines, and isolates them from each other.

`query_of_death` says which requests are suspect; `RoutingState.deadly` says it of the request itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gateway.errors import FlorinError
from gateway.routing.engine_deaths import DeathTracker
from gateway.routing.leases import Leases
from gateway.routing.query_of_death import Group
from gateway.routing.routing_state import RoutingState

ISOLATION_SECONDS = 1.0
"""How long, in total, a suspect request waits for an engine without other suspects."""


class SuspectIsolation:
    def __init__(
        self,
        leases: Leases,
        *,
        deaths: DeathTracker,
        hangs: DeathTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._deaths = deaths
        self._hangs = hangs
        self._clock = clock

    def concerns(self, group: Group) -> bool:
        """Whether anything is known of the group. If not, as nearly always, its requests may be sent, and
        avoid no engine."""
        deaths, hangs = self._deaths.suspects, self._hangs.suspects
        return (deaths.any and deaths.known(group)) or (hangs.any and hangs.known(group))

    def may_send(self, routing_state: RoutingState) -> bool:
        """Whether the request may be sent now; False: wait a moment. Raises FlorinError if it is blocked."""
        suspects, identity = self._deaths.suspects, routing_state.identity
        left = self._hangs.refused(identity)
        if left:
            raise FlorinError(
                "engine_hung",
                f"Engines hung more than once while serving this request. It is blocked for {left:.0f} s.",
                retry_after=math.ceil(left),
            )
        if routing_state.losses and routing_state.deadly:
            raise _blocked(suspects.refused(identity.fingerprint))
        if not suspects.any or not suspects.known(identity.group):
            return True
        self._deaths.refuse_group(identity.group)
        left = suspects.refused(identity.fingerprint)
        if left and self._may_wait(routing_state) and self._leases.identical(identity):
            return False  # the answer to the identical request will tell
        if left:
            raise _blocked(left)
        return True

    def to_avoid(self, routing_state: RoutingState) -> set[str]:
        """Engines that a suspect request should avoid because they run suspects of other groups: if one dies,
        the cause should be clear. Empty for requests that are not suspect, and after ISOLATION_SECONDS."""
        suspects, group = self._deaths.suspects, routing_state.identity.group
        if not suspects.any or not suspects.suspected(group):
            return set()
        names = {
            lease.state.engine.name
            for lease in self._leases.trials()
            if lease.identity and lease.identity.group != group
        }
        return names if names and self._may_wait(routing_state) else set()

    def suspects(self, group: Group) -> bool:
        """Whether requests of the group may have killed an engine."""
        suspects = self._deaths.suspects
        return suspects.any and suspects.suspected(group)

    def _may_wait(self, routing_state: RoutingState) -> bool:
        now = self._clock()
        if routing_state.isolation_deadline is None:
            routing_state.isolation_deadline = now + ISOLATION_SECONDS
        return now < min(routing_state.isolation_deadline, routing_state.deadline)


def _blocked(left: float) -> FlorinError:
    seconds = math.ceil(left) or 1
    return FlorinError(
        "request_suspected",
        f"Engines died more than once while serving this request. It is blocked for {seconds} s.",
        retry_after=seconds,
    )
