"""Writes serving statuses: why a version is not served, or why an engine is suspect.

The worker that detects the problem commits the status; the others learn it from the change feed. If two
detect it at once, the first commit wins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from adapters.errors import ConflictError, LoadFailedError, PlacementError, QuarantinedError
from adapters.model import Engine, ServingStatus, Version, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import AuditNote, Change, RegistryStore

log = logging.getLogger(__name__)

SUSPECT = "engine_suspect"
LOAD_FAILED = "load_failed"
FIRST_RETRY, LAST_RETRY = 60, 600
"""Seconds until a failed version or a suspect engine is retried; doubles with each attempt."""
SURE = 3
"""Consecutive failed loads, with pauses between them, before a version is marked as failed."""


def refusal(serving_status: ServingStatus) -> PlacementError:
    """The error for callers of the version."""
    quarantined = serving_status.state == "quarantined"
    return QuarantinedError(serving_status.reason) if quarantined else LoadFailedError(serving_status.reason)


def retry_seconds(attempts: int) -> int:
    return min(LAST_RETRY, FIRST_RETRY << min(16, max(0, attempts - SURE)))


@dataclass(slots=True)
class ServingStatuses:
    """Reads and commits serving statuses. Used by the loader, the verifier and the reconciler."""

    store: RegistryStore
    catalog: Catalog
    clock: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds, UTC."""

    def check(self, version: Version, *, quarantine_only: bool = False) -> None:
        """Raises QuarantinedError, LoadFailedError."""
        serving_status = self.catalog.serving_statuses.get(version.engine_name)
        if serving_status and (serving_status.state == "quarantined" or not quarantine_only):
            raise refusal(serving_status)

    def of_engine(self, engine: Engine) -> ServingStatus | None:
        """Why the engine is suspect; None if it is not."""
        serving_status = self.catalog.serving_statuses.get(engine.name)
        return serving_status if serving_status and serving_status.code == SUSPECT else None

    async def quarantine(
        self, version: Version, code: str, reason: str, engine: str, evidence: dict[str, Any]
    ) -> None:
        """Commit the status with its audit note. Raises StoreUnavailableError."""
        serving_status = ServingStatus(
            "quarantined", version.id, code, reason, engine, self.clock(), evidence=evidence
        )
        old = self.catalog.serving_statuses.get(version.engine_name)
        if old is not None and old.state == "quarantined":
            return
        log.error("Engine %s: %s quarantined: %s", engine, version.id, reason)
        with suppress(ConflictError):  # another worker was first
            await self._put(
                version.engine_name, serving_status, old, _note("version.quarantine", version, serving_status)
            )

    async def failed(self, version: Version, error: LoadFailedError, attempts: int) -> None:
        """Record another failed load on top of `attempts`, or of an older status's count. Raises
        StoreUnavailableError."""
        old = self.catalog.serving_statuses.get(version.engine_name)
        if old is not None and old.state != "failed":
            return
        now = self.clock()
        if old is None:
            serving_status = ServingStatus(
                "failed", version.id, LOAD_FAILED, str(error), error.engine, now, attempts
            )
        else:
            serving_status = replace(old, reason=str(error), engine=error.engine, attempts=old.attempts + 1)
        serving_status = replace(
            serving_status, retry=now + retry_seconds(serving_status.attempts) * 1_000_000
        )
        note = _note("version.fail", version, serving_status) if old is None else None
        with suppress(ConflictError):
            await self._put(version.engine_name, serving_status, old, note)

    async def recovered(self, version: Version) -> None:
        """Clear the `failed` status after a successful load. Raises StoreUnavailableError."""
        old = self.catalog.serving_statuses.get(version.engine_name)
        if old is not None and old.state == "failed":
            log.warning("Version %s: recovered, load succeeded", version.id)
            with suppress(ConflictError):
                await self._put(version.engine_name, None, old, _note("version.recover", version, old))

    async def suspect(self, engine: Engine, reason: str, evidence: dict[str, Any]) -> None:
        """Raises StoreUnavailableError."""
        old = self.of_engine(engine)
        now = self.clock()
        attempts = old.attempts + 1 if old else 1
        retry = now + FIRST_RETRY * 1_000_000
        since = old.since if old else now
        serving_status = ServingStatus(
            "failed", "", SUSPECT, reason, engine.name, since, attempts, retry, evidence
        )
        log.error("Engine %s: suspect: %s", engine.name, reason)
        with suppress(ConflictError):
            await self._put(engine.name, serving_status, old, None)

    async def trust(self, engine: Engine) -> None:
        """Raises StoreUnavailableError."""
        old = self.of_engine(engine)
        if old is not None:
            log.warning("Engine %s: no longer suspect", engine.name)
            with suppress(ConflictError):
                await self._put(engine.name, None, old, None)

    async def _put(
        self, id_: str, new: ServingStatus | None, old: ServingStatus | None, note: AuditNote | None
    ) -> None:
        expect = None if old is None else dump(old)
        change = Change("serving_status", id_, None if new is None else dump(new), expect=expect)
        await self.store.commit([change], audit=note)


def _note(action: str, version: Version, serving_status: ServingStatus) -> AuditNote:
    details = {"code": serving_status.code, "reason": serving_status.reason, "engine": serving_status.engine}
    actor = "verification" if serving_status.state == "quarantined" else "loader"
    return AuditNote(actor, action, version.adapter, f"v{version.number}", details)
