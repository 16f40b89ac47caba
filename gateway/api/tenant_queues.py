"""Queues of tenants' requests to the admin and finance API: so many run at a time, in turn among tenants.

Operators and analysts never wait in them, and a tenant's hundredth request delays another's first by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from gateway.admission.owner_queue import OwnerQueue, QueueFullError, QueueTimeoutError
from gateway.api.access_rules import Queue
from gateway.api.responses import ChunkedResponse
from gateway.config import Settings
from gateway.errors import FlorinError

WAITING: Final = 4
"""Requests of one tenant that may wait."""
UNREAD: Final = 4
"""Responses to one tenant that may be in transmission: each occupies memory or a file."""
WAITING_IN_TOTAL: Final = 64
UNREAD_IN_TOTAL: Final = 64
QUEUE_SECONDS: Final = 20.0
REPORTS: Final = 4
"""Finance queries of all tenants that may run at a time."""
CHANGES: Final = 16
"""The same of self-service; more, since a promotion waits for a load."""
CHANGES_EACH: Final = 4


class TenantQueue:
    """One per worker and kind of request, on its event loop."""

    def __init__(self, *, running: int, running_each: int, code: str, what: str) -> None:
        """`code`: the error for a tenant with too many; `what`: its requests, in words."""
        self._code, self._what = code, what
        self._max_each = running_each + WAITING + UNREAD
        self._max = running + WAITING_IN_TOTAL + UNREAD_IN_TOTAL
        self.queue = OwnerQueue(
            running=running,
            running_each=running_each,
            waiting_each=WAITING,
            waiting=WAITING_IN_TOTAL,
            timeout=QUEUE_SECONDS,
        )
        # Mutable: requests by tenant, from their arrival until their responses are sent.
        self.open_requests: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, tenant: str, response: ChunkedResponse) -> AsyncGenerator[None]:
        """Wait for a permit, which is released when the response starts. Raises FlorinError."""
        if self.open_requests[tenant] >= self._max_each:
            raise self._too_many()
        if self.open_requests.total() >= self._max:
            raise self._full()
        self.open_requests[tenant] += 1
        try:
            async with self.queue.acquire(tenant) as permit:
                response.on_start = permit.release
                yield
        except QueueFullError:
            raise self._too_many() from None
        except QueueTimeoutError:
            raise self._full() from None
        finally:
            self.open_requests[tenant] -= 1
            self.open_requests += Counter()  # drops zero counts

    def _too_many(self) -> FlorinError:
        message = f"This tenant has too many {self._what} running, waiting or unread."
        return FlorinError(self._code, message, retry_after=2)

    def _full(self) -> FlorinError:
        return FlorinError("worker_full", f"This worker has too many {self._what}.", retry_after=5)


def tenant_queues(settings: Settings) -> Mapping[Queue, TenantQueue]:
    each = settings.tenant_reports
    return {
        Queue.REPORTS: TenantQueue(
            running=max(REPORTS, each), running_each=each, code="too_many_reports", what="finance queries"
        ),
        Queue.SELF_SERVICE: TenantQueue(
            running=CHANGES, running_each=CHANGES_EACH, code="too_many_requests", what="self-service requests"
        ),
    }
