"""Cost lines: sums of roll-ups with their price, the one thing that reports, exports, statements and
comparisons are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.costs.periods import Period
from gateway.metering.ledger import Ledger

BUCKETS = ("usage", "retry_waste", "rejected", "headroom", "startup", "idle")
"""usage: delivered attempts; retry_waste: other attempts that reached an engine; rejected: requests that did
not (counted, without GPU-time); headroom: busy time beyond the work that calibrated weights account for;
startup: alive but not ready; idle: provisioned, and nothing in flight. The last three have no tenant."""

DIMENSIONS = (
    "tenant", "adapter", "version", "base_model", "gpu_type", "engine", "region", "purchase", "hour", "day",
)  # fmt: skip  # one name a line says no more


@dataclass(frozen=True, slots=True)
class Line:
    keys: tuple[str, ...]
    """Values of the dimensions asked for, in their order; hours and days as ISO 8601."""
    bucket: str
    gpu_type: str
    region: str
    purchase: str
    rate_micros: int | None
    """Millionths of the currency per GPU-hour; None: no price."""
    calibration: int
    correction: bool
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    nano_gpu_hours: int
    """May be negative in corrections."""
    weight_input: int
    weight_cached: int
    weight_output: int
    weight_other: int

    @property
    def cost(self) -> int | None:
        """10**-15 of the currency; None: no price."""
        return None if self.rate_micros is None else self.nano_gpu_hours * self.rate_micros


def lines(
    ledger: Ledger, period: Period, by: Sequence[str] = (), *, tenants: Sequence[str] = ()
) -> Iterator[Line]:
    """Sums by `by` and by what decides on the price. A period of whole months is read from those months'
    books: with the corrections posted in it, and without those posted later. Any other is read as it is known
    now, by hours. `tenants`: only rows of a tenant that is each of them.

    Raises LedgerUnavailableError."""
    raise NotImplementedError
