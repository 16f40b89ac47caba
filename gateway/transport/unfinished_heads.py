"""How much memory the headers of requests that have not all arrived may take.

Each connection may send `FLORIN_MAX_HEADER_BYTES` and then wait for `FLORIN_HEADER_TIMEOUT`, so thousands of
connections would take hundreds of megabytes. The largest are refused first: headers usually arrive whole, and
are then never counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

WORKER_BYTES: Final = 32 * 1024 * 1024
NETWORK_BYTES: Final = 8 * 1024 * 1024


class Holder(Protocol):
    """A connection."""

    def refuse_head(self) -> None:
        """Answer that there is no room, close the connection, and drop what has arrived."""


class UnfinishedHeads:
    """Mutable: the bytes of each connection's unfinished head, and of each network. On the event loop."""

    def __init__(self, total: int = WORKER_BYTES, of_network: int = NETWORK_BYTES) -> None:
        self._most = total
        self._most_of_network = of_network
        self._held: dict[Holder, tuple[object, int]] = {}
        self._by_network: Counter[object] = Counter()
        self._total = 0

    def __repr__(self) -> str:
        return f"<UnfinishedHeads {len(self._held)}, {self._total:,} bytes>"

    def note(self, connection: Holder, network: object, size: int) -> None:
        """A head has grown to `size` bytes. `network`: whose it counts as; that of a proxy is no one's, so
        its connections are given for their own. Refuses the largest heads if there is no room for all."""
        self.finish(connection)
        self._held[connection] = network, size
        self._by_network[network] += size
        self._total += size
        if self._by_network[network] > self._most_of_network:
            self._refuse(lambda n: n == network, lambda: self._by_network[network], self._most_of_network)
        if self._total > self._most:
            self._refuse(lambda _: True, lambda: self._total, self._most)

    def finish(self, connection: Holder) -> None:
        """A head has arrived whole, or its connection has ended. Idempotent."""
        network, size = self._held.pop(connection, (None, 0))
        if size:
            self._total -= size
            self._by_network[network] -= size
            if not self._by_network[network]:
                del self._by_network[network]

    def _refuse(self, counts: Callable[[object], bool], bytes_held: Callable[[], int], most: int) -> None:
        """Refuse the largest heads of the networks that hold most, until a quarter is free: sorting them for
        each part of a head would cost more than the memory."""
        sizes = [
            (self._by_network[network], size, connection)
            for connection, (network, size) in self._held.items()
            if counts(network)
        ]
        sizes.sort(key=lambda entry: entry[:2], reverse=True)
        for *_, connection in sizes:
            if bytes_held() <= most * 3 // 4:
                return
            self.finish(connection)
            connection.refuse_head()
