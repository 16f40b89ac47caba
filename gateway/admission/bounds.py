"""What is in flight on this worker: requests, and the bytes of their bodies, by key, by tenant and in all.

It is counted from before a body is read until its request has been answered; the bytes only until no retry
can need them. These bounds keep one caller from taking the worker's memory. They are no rate limits, and no
fair division of what is left.
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


class Bounds:
    """One per worker, used from its event loop only."""

    def __init__(self, *, key: Limit, tenant: Limit, worker: Limit) -> None:
        self.reconfigure(key=key, tenant=tenant, worker=worker)
        # Mutable: what is in flight. Keys and tenants of which nothing is have no entry.
        self._keys: dict[str, _Count] = {}
        self._tenants: dict[str, _Count] = {}
        self._all = _Count()

    def __repr__(self) -> str:
        return (
            f"<Bounds {self._all.requests} requests, {self._all.bytes} bytes, "
            f"{len(self._keys)} keys, {len(self._tenants)} tenants>"
        )

    @property
    def requests(self) -> int:
        """In flight on this worker."""
        return self._all.requests

    def reconfigure(self, *, key: Limit, tenant: Limit, worker: Limit) -> None:
        """For what comes from now on."""
        self._limits = key, tenant, worker

    def enter(self, key: str, tenant: str) -> Place:
        """A request begins. Raises FlorinError when it is one too many."""
        counts = self._keys.get(key) or _Count(), self._tenants.get(tenant) or _Count(), self._all
        for level, (count, limit) in enumerate(zip(counts, self._limits, strict=True)):
            if count.requests >= limit.requests:
                raise _refusal(level, f"{limit.requests:,} requests")
        self._keys[key], self._tenants[tenant], _ = counts
        for count in counts:
            count.requests += 1
        return Place(self, key, tenant, counts)

    def _grow(self, counts: tuple[_Count, _Count, _Count], size: int) -> None:
        """Raises FlorinError, and counts nothing then."""
        for level, (count, limit) in enumerate(zip(counts, self._limits, strict=True)):
            if count.bytes + size > limit.bytes:
                raise _refusal(level, f"{limit.bytes:,} bytes of bodies")
        for count in counts:
            count.bytes += size

    def _leave(self, key: str, tenant: str, counts: tuple[_Count, _Count, _Count]) -> None:
        for count in counts:
            count.requests -= 1
        if not counts[0].requests:
            del self._keys[key]
        if not counts[1].requests:
            del self._tenants[tenant]


class Place:
    """One request in flight. `leave` may be called any number of times and counts once."""

    __slots__ = ("_bounds", "_counts", "_key", "_size", "_tenant")

    def __init__(self, bounds: Bounds, key: str, tenant: str, counts: tuple[_Count, _Count, _Count]) -> None:
        self._bounds = bounds
        self._key = key
        self._tenant = tenant
        # Mutable: None when it has been left.
        self._counts: tuple[_Count, _Count, _Count] | None = counts
        self._size = 0

    def grow(self, size: int) -> None:
        """So many more bytes of the body are held. Raises FlorinError when they are too many."""
        if self._counts is not None:
            self._bounds._grow(self._counts, size)  # noqa: SLF001  # the two are one
            self._size += size

    def hold(self, size: int) -> None:
        """So many bytes are held instead of what was until now. Not bounded: it has been let in."""
        if self._counts is not None:
            for count in self._counts:
                count.bytes += size - self._size
            self._size = size

    def leave(self) -> None:
        if self._counts is not None:
            self.hold(0)
            self._bounds._leave(self._key, self._tenant, self._counts)  # noqa: SLF001  # likewise
            self._counts = None


def _refusal(level: int, what: str) -> FlorinError:
    if level == 2:
        return FlorinError("worker_full", f"{what} are in flight on this worker.", retry_after=_RETRY_SECONDS)
    whose = ("this key", "this tenant")[level]
    return FlorinError("too_many_requests", f"{what} of {whose} are in flight.", retry_after=_RETRY_SECONDS)
