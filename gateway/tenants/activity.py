"""When this worker last saw each API key used, and with which errors tenants' requests ended.

For people who look at a key or a tenant. It is noted in memory, one write to a dict for each request, and
reported to the store in batches. It never holds anything that a client wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.activity import KEPT_ERRORS, ActivityStore
from gateway.errors import CODES
from gateway.observability.request_context import RequestContext
from gateway.tenants.directory import PERSON

REPORT_SECONDS: Final = 10.0
MAX_PENDING: Final = 5_000
"""Errors that wait for the next report. Further ones are dropped."""
_TENANTS: Final = 100
"""Tenants whose errors are read at a time."""
_NOT_USED: Final = frozenset({"revoked_api_key", "expired_api_key", "tenant_suspended"})
"""Errors of requests whose key authentication refused."""


class Activity:
    """Mutable: what is not reported yet. Use it from the worker's event loop only."""

    def __init__(self, store: ActivityStore, clock: Callable[[], int]) -> None:
        """`clock`: Unix microseconds."""
        self._store = store
        self._clock = clock
        self._uses: dict[str, int] = {}
        self._errors: dict[str, deque[bytes]] = {}
        self._pending = 0

    def __repr__(self) -> str:
        return f"<Activity {len(self._uses)} keys used, {self._pending} errors>"

    def used(self, key_id: str) -> None:
        """A key was used for anything but a call."""
        self._uses[key_id] = self._clock()

    def note(self, context: RequestContext) -> None:
        """A request on the data plane has ended."""
        error = context.error
        if context.key_id and error not in _NOT_USED:
            self._uses[context.key_id] = self._clock()
        if error and context.tenant and self._pending < MAX_PENDING:
            self._add(context, error)

    def _add(self, context: RequestContext, error: str) -> None:
        kept = self._errors.get(context.tenant)
        if kept is None:
            kept = self._errors[context.tenant] = deque(maxlen=KEPT_ERRORS)
        self._pending += len(kept) < KEPT_ERRORS
        kept.append(
            orjson.dumps(
                {
                    "failed_at": self._clock(),
                    "code": error,
                    "status": CODES[error].status,
                    "request_id": context.request_id,
                    "adapter": context.adapter,
                    "key": context.key_id,
                }
            )
        )

    async def run(self) -> None:
        """Report until cancelled. Call `report` once more afterwards."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            with contextlib.suppress(StoreUnavailableError):
                await self.report()

    async def report(self) -> None:
        """Tell the store what is pending, which stays pending if that fails. Raises StoreUnavailableError."""
        people = [
            id_ for id_ in self._uses if id_.startswith(PERSON)
        ]  # in the console: no keys of the registry
        for id_ in people:
            del self._uses[id_]
        uses, errors, pending = self._uses, self._errors, self._pending
        if not uses and not errors:
            return
        self._uses, self._errors, self._pending = {}, {}, 0
        try:
            texts = {tenant: [text.decode() for text in kept] for tenant, kept in errors.items()}
            await self._store.report_activity(uses, texts)
        except BaseException:  # a cancellation, too
            self._uses = uses | self._uses
            for tenant, kept in self._errors.items():
                errors.setdefault(tenant, deque(maxlen=KEPT_ERRORS)).extend(kept)
            self._errors, self._pending = errors, min(pending + self._pending, MAX_PENDING)
            raise

    async def last_uses(self, ids: Sequence[str]) -> Mapping[str, int]:
        """When keys were last used, as far as it was reported, or seen by this worker."""
        with contextlib.suppress(StoreUnavailableError):
            await self.report()
            return await self._store.last_uses(ids)
        return {id_: self._uses[id_] for id_ in ids if id_ in self._uses}

    async def last_errors(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's last errors as far as they were reported, newest first."""
        with contextlib.suppress(StoreUnavailableError):
            await self.report()
            texts = dict.fromkeys(await self._store.last_errors(tenant))  # a report may have come twice
            errors = [orjson.loads(text) for text in texts]
            return sorted(errors, key=lambda error: error["failed_at"], reverse=True)
        return [orjson.loads(text) for text in reversed(self._errors.get(tenant, ()))]

    async def find_error(self, request_id: str, tenants: Sequence[str]) -> dict[str, Any] | None:
        """The error of one request, with its `tenant`, if it is among the last errors of one of these. Looks
        through the lists of a few tenants at a time, so that it needs little memory."""
        with contextlib.suppress(StoreUnavailableError):
            await self.report()
            for start in range(0, len(tenants), _TENANTS):
                some = tenants[start : start + _TENANTS]
                for tenant, texts in zip(some, await self._store.last_errors_of(some), strict=True):
                    if error := _of_request(request_id, texts):
                        return {"tenant": tenant, **error}
            return None
        for tenant in tenants:
            if error := _of_request(request_id, [text.decode() for text in self._errors.get(tenant, ())]):
                return {"tenant": tenant, **error}
        return None


def _of_request(request_id: str, texts: Iterable[str]) -> dict[str, Any] | None:
    """Only what holds the id at all is parsed."""
    errors = (orjson.loads(text) for text in texts if request_id in text)
    return next((error for error in errors if error["request_id"] == request_id), None)
