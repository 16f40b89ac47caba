"""The resources that the controller knows of, and when it next looks at each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gateway.kubernetes.resource import PLURALS, Key, Kind, Resource

FIRST_RETRY = 5.0
LONGEST_RETRY = 300.0


def retry_delay(failures: int) -> float:
    """Seconds: twice as long after each failure in a row."""
    return float(min(FIRST_RETRY * 2 ** min(failures - 1, 10), LONGEST_RETRY))


class Inventory:
    """Mutable: resources, times, failures in a row, what is being acted on. On one event loop."""

    def __init__(self, clock: Callable[[], float], *, resync: float) -> None:
        """`clock`: monotonic seconds. `resync`: seconds until a resource at rest is looked at again."""
        self._clock = clock
        self._resync = resync
        self.resources: dict[Key, Resource] = {}
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._listed: set[Kind] = set()
        self.acting: set[Key] = set()
        """Not looked at meanwhile."""
        self._woken = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Inventory of {len(self.resources)}, {len(self.acting)} being acted on>"

    # -- what the API server says

    def replace(self, kind: Kind, resources: Iterable[Resource]) -> None:
        """With a list of all of a kind."""
        listed = {resource.key: resource for resource in resources}
        for key in [key for key in self.resources if key[0] == kind and key not in listed]:
            self.forget(self.resources[key])
        for resource in listed.values():
            self.remember(resource)
        self._listed.add(kind)
        self._woken.set()

    def remember(self, resource: Resource) -> None:
        before = self.resources.get(resource.key)
        self.resources[resource.key] = resource
        if resource.wants_a_look(before):
            self.look_now(resource.key)
        if before is None:
            self._look_at_namesakes(resource)

    def update(self, resource: Resource) -> None:
        """With what a change of it has returned; one that has gone meanwhile stays away."""
        if resource.deleting and not resource.finalizers:
            self.forget(resource)
        elif resource.key in self.resources:
            self.remember(resource)

    def forget(self, resource: Resource) -> None:
        for known in (self.resources, self._due, self._failures):
            known.pop(resource.key, None)
        self._look_at_namesakes(resource)
        if resource.kind == "LoraAdapter":  # a tenant that is deleted, too, waits for its adapters
            for other in self.resources.values():
                if other.kind == "Tenant" and other.deleting:
                    self.look_now(other.key)

    def look_at_adapters(self, tenant: str) -> None:
        """Those of a tenant that is there now: some may have waited for it."""
        for other in self.resources.values():
            if other.key in self._failures and other.id.startswith(f"{tenant}/"):
                self.look_now(other.key)

    def _look_at_namesakes(self, resource: Resource) -> None:
        for other in self.resources.values():
            if (other.kind, other.id) == (resource.kind, resource.id) and other.key != resource.key:
                self.look_now(other.key)

    # -- when to look

    def look_now(self, key: Key) -> None:
        """Forgets failures, too: something has changed."""
        self._failures.pop(key, None)
        self._look_in(0, key)

    def look_later(self, key: Key) -> None:
        self._look_in(self._resync, key)

    def rest(self, key: Key) -> None:
        """Nothing is wrong, or only a change of the resource can mend it."""
        self._failures.pop(key, None)
        self._look_in(self._resync, key)

    def retry(self, key: Key) -> None:
        self._failures[key] = self._failures.get(key, 0) + 1
        self._look_in(retry_delay(self._failures[key]), key)

    def look_after_change(self, key: Key) -> None:
        """To see what it has led to: at once, but later if the last look was for that, too."""
        self.retry(key)
        if self._failures[key] == 1:
            self._look_in(0, key)

    def _look_in(self, seconds: float, key: Key) -> None:
        if key in self.resources:
            self._due[key] = self._clock() + seconds
            self._woken.set()

    def done(self, key: Key) -> None:
        """It is no longer acted on."""
        self.acting.discard(key)
        self._woken.set()

    async def wait(self) -> None:
        """Until every kind has been listed and something is due."""
        while True:
            self._woken.clear()
            waiting = [moment for key, moment in self._due.items() if key not in self.acting]
            delay = min(waiting) - self._clock() if waiting else None
            if self._listed == PLURALS.keys() and delay is not None and delay <= 0:
                return
            try:
                async with asyncio.timeout(delay if delay is None or delay > 0 else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def due(self) -> list[Resource]:
        now = self._clock()
        keys = [key for key, moment in self._due.items() if moment <= now and key not in self.acting]
        return [self.resources[key] for key in keys]
