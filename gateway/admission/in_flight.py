"""Limits on what is in flight on this worker: requests and body bytes, per key, per tenant and in total.

A request counts from before its body is read until it is answered; its bytes count until no retry can need
them. The limits keep one caller from exhausting the worker's memory. They are not rate limits and do not
share capacity fairly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.errors import FlorinError

_RETRY_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Limit:
    requests: int
    bytes: int


@dataclass(slots=True)
class _Count:
    requests: int = 0
    bytes: int = 0


class InFlightLimits:
    """Counts of one worker. Use it from the worker's event loop only."""

    def __init__(self, *, key: Limit, tenant: Limit, worker: Limit) -> None:
        self.reconfigure(key=key, tenant=tenant, worker=worker)
        # Mutable: counts in flight. Keys and tenants without requests have no entry.
        self._keys: dict[str, _Count] = {}
        self._tenants: dict[str, _Count] = {}
        self._all = _Count()

    def __repr__(self) -> str:
        return (
            f"<InFlightLimits {self._all.requests} requests, {self._all.bytes} bytes, "
            f"{len(self._keys)} keys, {len(self._tenants)} tenants>"
        )

    @property
    def requests(self) -> int:
        """Requests in flight on this worker."""
        return self._all.requests

    def reconfigure(self, *, key: Limit, tenant: Limit, worker: Limit) -> None:
        """Apply new limits to future requests and bytes."""
        self._limits = key, tenant, worker

    def reserve(self, key: str, tenant: str) -> Reservation:
        """Count a new request. Raises FlorinError when a limit is reached."""
        own, group, everyone = self._keys.get(key), self._tenants.get(tenant), self._all
        counts = own or _Count(), group or _Count(), everyone
        for level, limit in enumerate(self._limits):
            if counts[level].requests >= limit.requests:
                raise _refusal(level, f"{limit.requests:,} requests")
        if own is None:
            own = self._keys[key] = counts[0]
        if group is None:
            group = self._tenants[tenant] = counts[1]
        own.requests += 1
        group.requests += 1
        everyone.requests += 1
        return Reservation(self, key, tenant, counts)

    def _grow(self, counts: tuple[_Count, _Count, _Count], size: int) -> None:
        """Count more bytes. Raises FlorinError, without counting any, when a limit is reached."""
        for level, limit in enumerate(self._limits):
            if counts[level].bytes + size > limit.bytes:
                raise _refusal(level, f"{limit.bytes:,} bytes of bodies")
        own, group, everyone = counts
        own.bytes += size
        group.bytes += size
        everyone.bytes += size

    def _release(self, key: str, tenant: str, counts: tuple[_Count, _Count, _Count]) -> None:
        own, group, everyone = counts
        own.requests -= 1
        group.requests -= 1
        everyone.requests -= 1
        if not own.requests:
            del self._keys[key]
        if not group.requests:
            del self._tenants[tenant]


class Reservation:
    """One request in flight. `release` is idempotent."""

    __slots__ = ("_bounds", "_counts", "_key", "_size", "_tenant")

    def __init__(
        self, bounds: InFlightLimits, key: str, tenant: str, counts: tuple[_Count, _Count, _Count]
    ) -> None:
        self._bounds = bounds
        self._key = key
        self._tenant = tenant
        # Mutable: None once released.
        self._counts: tuple[_Count, _Count, _Count] | None = counts
        self._size = 0

    def grow(self, size: int) -> None:
        """Count `size` more bytes of the body. Raises FlorinError when a limit is reached."""
        if self._counts is not None:
            self._bounds._grow(self._counts, size)  # noqa: SLF001  # the two are one
            self._size += size

    def hold(self, size: int) -> None:
        """Replace the byte count. Never refused: the request has been admitted."""
        more = size - self._size
        if more and self._counts is not None:
            own, group, everyone = self._counts
            own.bytes += more
            group.bytes += more
            everyone.bytes += more
            self._size = size

    def release(self) -> None:
        if self._counts is not None:
            self.hold(0)
            self._bounds._release(self._key, self._tenant, self._counts)  # noqa: SLF001  # likewise
            self._counts = None


def _refusal(level: int, what: str) -> FlorinError:
    if level == 2:
        return FlorinError(
            "worker_full", f"This worker's limit of {what} in flight is reached.", retry_after=_RETRY_SECONDS
        )
    whose = ("key", "tenant")[level]
    return FlorinError(
        "too_many_requests",
        f"This {whose}'s limit of {what} in flight is reached.",
        retry_after=_RETRY_SECONDS,
    )
