"""What this worker holds of one thing that is counted of a subject."""

from __future__ import annotations

from adapters.store.protocol.limits import NEAR_PARTS, NEAR_REQUESTS
from gateway.tenants.limits.allowances import Counter
from gateway.tenants.limits.needs import Used


class Holding:
    """What this worker holds of one flow. granted = spent + reserved + free, all cumulative but the last two.
    `free` is less than zero while requests have used more than they reserved."""

    __slots__ = (
        "booked", "counter", "demand", "free", "heard", "is_rate", "limit", "reserved", "shared", "spent",
        "taken", "unit", "used",
    )  # fmt: skip

    def __init__(self, counter: Counter) -> None:
        self.free = self.reserved = self.spent = 0
        self.heard = 0
        """The store's last `granted`."""
        self.used = self.shared = self.booked = 0
        """As the store said last."""
        self.demand = 0.0
        """Taken per interval, smoothed."""
        self.taken = 0
        self.update(counter)

    def __repr__(self) -> str:
        return f"<Holding {self.counter.name} free={self.free} reserved={self.reserved}>"

    def update(self, counter: Counter) -> None:
        self.counter, self.limit = counter, counter.limit
        self.unit, self.is_rate = counter.unit, counter.is_rate

    def near(self, worst: Used) -> bool:
        """Whether a budget is near its end: each request is then counted in the store, at its worst."""
        left = self.limit - self.used
        return left * NEAR_PARTS < self.limit or left < NEAR_REQUESTS * worst[self.unit]
