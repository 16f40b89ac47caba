"""Verdicts: why a version is not served, written once and believed by every worker.

Whoever finds it out commits it; the others hear of it with the change feed. Where two find it out at once,
the first is right.
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
from adapters.store.protocol import AuditNote, Change, Store

log = logging.getLogger(__name__)

SUSPECT = "engine_suspect"
LOAD_FAILED = "load_failed"
FIRST_RETRY, LAST_RETRY = 60, 600
"""Seconds until a version that could not be loaded, or an engine that is not trusted, is tried again;
doubling from one attempt to the next."""
SURE = 3
"""Failed loads, with pauses between, before a version counts as one that cannot be loaded."""


def refusal(serving_status: ServingStatus) -> PlacementError:
    """What a caller of the version is told."""
    quarantined = serving_status.state == "quarantined"
    return QuarantinedError(serving_status.reason) if quarantined else LoadFailedError(serving_status.reason)


def retry_seconds(attempts: int) -> int:
    return min(LAST_RETRY, FIRST_RETRY << min(16, max(0, attempts - SURE)))


@dataclass(slots=True)
class ServingStatuses:
    store: Store
    catalog: Catalog
    clock: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds, UTC."""

    def check(self, version: Version, *, quarantine_only: bool = False) -> None:
        """Raises QuarantinedError, LoadFailedError."""
        serving_status = self.catalog.serving_statuses.get(version.engine_name)
        if serving_status and (serving_status.state == "quarantined" or not quarantine_only):
            raise refusal(serving_status)

    def of_engine(self, engine: Engine) -> ServingStatus | None:
        """Why it is not trusted with loads, if it is not."""
        serving_status = self.catalog.serving_statuses.get(engine.name)
        return serving_status if serving_status and serving_status.code == SUSPECT else None

    async def quarantine(
        self, version: Version, code: str, reason: str, engine: str, evidence: dict[str, Any]
    ) -> None:
        """In one commit with its note. Raises StoreUnavailableError."""
        serving_status = ServingStatus(
            "quarantined", version.id, code, reason, engine, self.clock(), evidence=evidence
        )
        old = self.catalog.serving_statuses.get(version.engine_name)
        if old is not None and old.state == "quarantined":
            return
        log.error("%s is quarantined: %s (on %s)", version.id, reason, engine)
        with suppress(ConflictError):  # somebody else has found it out
            await self._put(
                version.engine_name, serving_status, old, _note("version.quarantine", version, serving_status)
            )

    async def failed(self, version: Version, error: LoadFailedError, attempts: int) -> None:
        """Once more, since the `attempts` that a worker counted or that an older serving status did. Raises
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
        """It has been loaded: if it counted as failed, it does no longer. Raises StoreUnavailableError."""
        old = self.catalog.serving_statuses.get(version.engine_name)
        if old is not None and old.state == "failed":
            log.warning("%s can be loaded again", version.id)
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
        log.error("%s is not trusted with loads: %s", engine.name, reason)
        with suppress(ConflictError):
            await self._put(engine.name, serving_status, old, None)

    async def trust(self, engine: Engine) -> None:
        """Raises StoreUnavailableError."""
        old = self.of_engine(engine)
        if old is not None:
            log.warning("%s is trusted with loads again", engine.name)
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
