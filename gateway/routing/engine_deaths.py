"""Shares engine deaths among workers: reported in batches, received from the change feed.

Each worker knows only its own requests. It reports each death with the requests that it had on the engine,
and later which of them were answered, as documents of kind `death`:

    <engine>/<worker>   {"at": Unix microseconds, "requests": [[fingerprint, tenant, adapter, begun], …]}
    /<worker>           {"at": …, "answered": [[fingerprint, tenant, adapter], …]}

So there are few of them: the last death of each engine as each worker saw it. No request waits for this.
While Redis is down, each worker relies on its own observations.

Hangs are reported in the same way, as documents of kind `hang`, by a separate instance. A hang says little
about the requests on the engine, so it never counts against a group, and a request is blocked only at its
third hang. But the other workers need to know at once, even if there were no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from adapters.errors import ConflictError, StoreUnavailableError
from adapters.store.protocol.registry import Change, Event, RegistryStore
from gateway.errors import FlorinError
from gateway.routing.outlier_ejection import LONGEST_PAUSE
from gateway.routing.query_of_death import FORGET, Group, SuspectRequest, Suspects
from gateway.routing.request_identity import RequestIdentity

log = logging.getLogger(__name__)

KIND, HANG_KIND = "death", "hang"
REPORT_SECONDS = 0.1
SWEEP_SECONDS = 60.0
MAX_REPORTED_REQUESTS = 1000
"""Maximum requests in one report: about 100 KB."""
REQUEST_HANGS = 3
"""Higher than for deaths, since engines may hang together for a reason other than their requests."""
SAME_HANG = 60.0
"""Seconds within which several workers detect the same hang, each when its own probe fails."""
FRESH_REPORT = LONGEST_PAUSE + 60.0
"""Seconds for which a report of a hang is current. It is renewed whenever a probe fails."""


class DeathTracker:
    """Mutable: the suspects, and reports to be sent. Use it from the worker's event loop only."""

    def __init__(
        self,
        store: RegistryStore,
        worker: str,
        count: Callable[[str, str], None],
        *,
        hangs: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`count(tenant, adapter)` is called for each death at which this worker had requests of the group.
        `hangs`: track hangs instead of deaths."""
        self._hangs = hangs
        self._kind = HANG_KIND if hangs else KIND
        self.suspects = Suspects(clock, most=REQUEST_HANGS, same=SAME_HANG) if hangs else Suspects(clock)
        self.on_report: Callable[[str], None] = lambda _engine: None
        """Called with each engine that another worker has just reported."""
        self._store = store
        self._worker = worker
        self._count = count
        self._wall = wall
        self._reports: dict[str, str] = {}
        self._answered: deque[tuple[str, str, str]] = deque(maxlen=MAX_REPORTED_REQUESTS)
        self._heard: dict[str, str] = {}
        """Documents of all workers, so that a snapshot processes none of them twice."""

    def __repr__(self) -> str:
        return f"<DeathTracker {self.suspects!r}>"

    # -- this worker's observations

    def died(self, engine: str, requests: Iterable[SuspectRequest]) -> None:
        """Record that an engine died with these requests on it."""
        listed = list(requests)[:MAX_REPORTED_REQUESTS]
        if not listed and not self._hangs:
            return
        self._suspect(engine, self._worker, listed, 0.0)
        for group in {each.group for each in listed}:
            self._count(*group)
        rows = [(each.fingerprint, *each.group, each.begun) for each in listed]
        self._reports[f"{engine}/{self._worker}"] = self._document(requests=rows)

    def answered(self, identity: RequestIdentity) -> None:
        """Record that an engine has answered the request."""
        suspects, group = self.suspects, identity.group
        if suspects.any and suspects.known(group) and suspects.answered(identity.fingerprint, group):
            self._answered.append((identity.fingerprint, *group))

    def refused(self, identity: RequestIdentity) -> float:
        """Seconds for which this request remains blocked; 0: it is not blocked."""
        suspects = self.suspects
        known = suspects.any and suspects.known(identity.group)
        return suspects.refused(identity.fingerprint) if known else 0.0

    def refuse_group(self, group: Group) -> None:
        """Raises FlorinError while the tenant's use of the adapter is suspended."""
        left = self.suspects.group_refused(group)
        if left:
            raise FlorinError(
                "adapter_suspended",
                f"Several engines died while serving your requests to {group[1] or 'the base model'}. New "
                f"requests are suspended for {math.ceil(left)} s.",
                retry_after=math.ceil(left),
            )

    # -- other workers' observations: adapters.store.feed.View

    def load(self, documents: dict[str, dict[str, str]]) -> None:
        """Process a snapshot. It never deletes what is known already."""
        for id_, data in sorted(documents.get(self._kind, {}).items(), reverse=True):  # deaths before answers
            self._hear(id_, data)

    def apply(self, event: Event) -> None:
        if event.kind == self._kind:
            if event.data is None:
                self._heard.pop(event.id, None)
            else:
                self._hear(event.id, event.data)

    def _hear(self, id_: str, data: str) -> None:
        engine, _, worker = id_.rpartition("/")
        if self._heard.get(id_) == data:
            return
        self._heard[id_] = data
        try:
            self._take(engine, worker, orjson.loads(data))
        except (ValueError, KeyError, TypeError) as error:  # for example, of another release
            log.warning("Cannot read death report %s: %s", id_, error)

    def _take(self, engine: str, worker: str, document: dict[str, Any]) -> None:
        ago = max(0.0, self._wall() - document["at"] / 1e6)
        if worker == self._worker or ago > FORGET:
            return
        if engine:
            rows = document["requests"]
            requests = [
                SuspectRequest(print_, (tenant, adapter), begun) for print_, tenant, adapter, begun in rows
            ]
            self._suspect(engine, worker, requests, ago)
            if ago < FRESH_REPORT:
                self.on_report(engine)
        else:
            for fingerprint, tenant, adapter in document["answered"]:
                self.suspects.answered(fingerprint, (tenant, adapter), ago=ago)

    def _suspect(self, engine: str, reporter: str, requests: list[SuspectRequest], ago: float) -> None:
        for group in self.suspects.death(engine, reporter, requests, ago=ago):
            left = self.suspects.group_refused(group)
            if left and not self._hangs:
                log.warning(
                    "Tenant %s suspended from %s for %.0f s: its requests were on several engines that died, "
                    "most recently %s",
                    group[0],
                    group[1] or "the base model",
                    left,
                    engine,
                )

    def fresh(self) -> set[str]:
        """Engines that another worker reported recently."""
        now, engines = self._wall(), set[str]()
        for id_, data in self._heard.items():
            engine, _, worker = id_.rpartition("/")
            if engine and worker != self._worker:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # of another release
                    if now - orjson.loads(data)["at"] / 1e6 < FRESH_REPORT:
                        engines.add(engine)
        return engines

    # -- reports

    async def run(self) -> None:
        """Report until cancelled."""
        swept = time.monotonic()
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            try:
                await self.report()
                if time.monotonic() - swept > SWEEP_SECONDS:
                    swept = time.monotonic()
                    await self._sweep()
            except StoreUnavailableError:  # kept, and reported later
                pass

    async def report(self) -> None:
        """Send the observations since the last report."""
        reports, answered = dict(self._reports), list(self._answered)
        changes = [Change(self._kind, id_, data) for id_, data in reports.items()]
        if answered:
            changes.append(Change(self._kind, f"/{self._worker}", self._document(answered=answered)))
        if not changes:
            return
        await self._store.commit(changes)
        for id_, data in reports.items():
            if self._reports.get(id_) == data:
                del self._reports[id_]
        for _ in answered:
            self._answered.popleft()

    async def _sweep(self) -> None:
        """Remove old documents of all workers."""
        now = self._wall()
        for id_, data in list(self._heard.items()):
            if now - orjson.loads(data)["at"] / 1e6 > FORGET:
                try:
                    await self._store.commit([Change(self._kind, id_, None, expect=data)])
                except ConflictError:  # newer now, or swept by another
                    self._heard.pop(id_, None)

    def _document(self, **what: Any) -> str:
        return orjson.dumps({"at": int(self._wall() * 1e6), **what}).decode()
