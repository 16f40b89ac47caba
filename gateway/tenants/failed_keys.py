"""Slows down key guessing: an address that has sent too many unknown keys must wait.

Only unknown keys count and are refused. A key that exists is looked up first, so nobody is locked out by what
others behind the same address do, and valid requests cost nothing more. Each worker counts for itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_network
from typing import Final

from adapters.security.ip_addresses import parse_address

MOST_ADDRESSES: Final = 10_000
"""Addresses that are remembered; then those that failed longest ago are forgotten."""
_NETWORK_BITS: Final = 64
"""The part of an IPv6 address that names the network; a client usually has one to itself."""


class FailedKeys:
    """The failed keys of one worker, on its event loop. Mutable: the failures of each address in its current
    window."""

    def __init__(self, *, limit: int = 0, window: float = 60.0, clock: Callable[[], int]) -> None:
        """`limit`: failures of an address in `window` seconds; 0: any number. `clock`: Unix microseconds."""
        self.limit = limit
        self.window = window
        self._clock = clock
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Address → (end of its window, failures in it), the latest last."""
        self.on_failure: Callable[[bool], None] = lambda _: None
        """Called for each, with whether it was one too many."""

    def __repr__(self) -> str:
        return f"<FailedKeys of {len(self._seen)} addresses>"

    def record(self, address: str) -> int:
        """Count a failure. Returns the seconds for which the address must wait; 0: it need not. `address`: of
        the client; empty if it is unknown."""
        wait = self._count(_client(address)) if self.limit and address else 0
        self.on_failure(wait > 0)
        return wait

    def _count(self, client: str) -> int:
        now = self._clock()
        end, failures = self._seen.pop(client, (0, 0))
        if end <= now:
            end, failures = now + int(self.window * 1_000_000), 0
        self._seen[client] = end, failures + 1
        if len(self._seen) > MOST_ADDRESSES:
            self._seen.popitem(last=False)
        return math.ceil((end - now) / 1_000_000) if failures >= self.limit else 0


def _client(address: str) -> str:
    """The address or, for IPv6, its network: one client can have any number of addresses in it."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed.packed, _NETWORK_BITS), strict=False))
    return address if parsed is None else str(parsed)
