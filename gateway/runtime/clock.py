"""The clock for metering and billing: UTC that is immune to steps of the host's clock.

Its time is the machine's uptime, which nobody can set, plus a base that was taken from the wall clock once.
All workers of a host share the base through a file until the machine reboots. So if the host's clock is set
by two hours, Florin still measures the seconds that passed, even across restarts of the gateway.

Every few seconds the clock is compared with those of the system, Redis and the ledger's database. A
disagreement is reported. The clock follows only if two of the others have agreed for a while: then the base
changes on all workers of the host at the same instant, which starts a new *era*. Durations never span eras:
what is running at the change is counted up to it in the old era, and from it in the new one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Final

from gateway.observability.conditions import Condition

log = logging.getLogger(__name__)

AGAINST: Final = ("system", "redis", "ledger")
TOLERANCE: Final = 5_000_000
"""Microseconds by which clocks may differ before it is reported."""
SETTLE_SECONDS: Final = 300.0
"""How long two clocks must agree on a different time before it is adopted."""
AHEAD: Final = 30_000_000
"""Microseconds between the announcement of a new base and its start: enough for all workers to read it."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Era = tuple[int, int]
"""Uptime at which the era starts, and its base, in microseconds."""


_SINCE_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> int:
    """Microseconds since the machine booted; on Linux, including time in suspension."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1000


def system_time() -> int:
    """Unix microseconds, by the host's clock."""
    return time.time_ns() // 1000


def boot_id() -> str:
    """Identifies the current boot of the machine; empty: unknown."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def agreed(offsets: Mapping[str, int]) -> int | None:
    """The offset on which two clocks agree, preferably the system's. None: no two agree, or they agree with
    Florin's clock."""
    for offset, other in combinations([offsets[name] for name in AGAINST if name in offsets], 2):
        if abs(offset - other) <= TOLERANCE:
            return offset if abs(offset) > TOLERANCE else None
    return None


class Clock:
    """The clock of one process. `now` may be called from any thread, `compare` from one only."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        settle: float = SETTLE_SECONDS,
        uptime: Callable[[], int] = uptime,
        system: Callable[[], int] = system_time,
        boot: str | None = None,
    ) -> None:
        """`path`: the file that the host's workers share. Without it, the clock is private to this process
        and considered confirmed."""
        self._path = path
        self._settle = int(settle * 1e6)
        self._uptime = uptime
        self._system = system
        self._boot = boot_id() if boot is None else boot
        self._doubted: int | None = None
        """Uptime since which two others have agreed on a different time."""
        self.offsets: dict[str, int] = {}
        """Other clocks minus this clock, in microseconds."""
        self._eras: list[Era] = [(0, system() - uptime())]
        self._fresh = path is not None
        """No other clock has confirmed this one yet."""
        kept = self._adopt()
        self._started = self.now()
        if not kept:
            self._write()

    def __repr__(self) -> str:
        return f"<Clock {self.now()} {self.offsets}>"

    # -- reading

    def now(self) -> int:
        """Unix microseconds, UTC."""
        up, eras = self._uptime(), self._eras
        return up + (eras[0][1] if len(eras) == 1 else self._base(up))

    def now_ns(self) -> int:
        return self.now() * 1000

    @property
    def era(self) -> int:
        return self._era(self._uptime()) if len(self._eras) > 1 else 0

    @property
    def since(self) -> int:
        """Durations must not start before this time: it is in another era, or unconfirmed."""
        if self._fresh:
            return self._started
        start, base = self._eras[self.era]
        return start + base if start else 0

    def ended(self, era: int) -> int | None:
        """When an era ended, in monotonic nanoseconds; None: it has not ended."""
        if era >= self.era:
            return None
        return time.monotonic_ns() - (self._uptime() - self._eras[era + 1][0]) * 1000

    # -- comparison with other clocks

    def conditions(self) -> Iterable[Condition]:
        for name, offset in self.offsets.items():
            if abs(offset) > TOLERANCE:
                which = {"system": "This host's clock", "redis": "Redis's clock"}.get(
                    name, "The ledger's clock"
                )
                way = "ahead of" if offset > 0 else "behind"
                yield Condition("clock_off", name, f"{which} is {abs(offset) / 1e6:,.0f} s {way} Florin's.")

    def compare(self, shown: Mapping[str, int]) -> None:
        """Record the offsets of other clocks, and adopt their time if the rules allow it."""
        off = {name for name, offset in shown.items() if abs(offset) > TOLERANCE}
        for name in off - {n for n, offset in self.offsets.items() if abs(offset) > TOLERANCE}:
            log.warning("Clock %s differs from Florin's by %.1f s", name, shown[name] / 1e6)
        self.offsets = dict(shown)
        self._adopt()
        up, shift = self._uptime(), agreed(shown)
        if shift is None or len(self._eras) > self._era(up) + 1:  # a change is announced already
            self._doubted = None
            if self._fresh and not off and len(shown) > 1:
                self._fresh = False
                self._write()
            return
        self._doubted = up if self._doubted is None else self._doubted
        if self._fresh or up - self._doubted >= self._settle:
            begins = up if self._fresh else up + AHEAD
            log.warning("Setting Florin's clock by %.1f s, on which two other clocks agree", shift / 1e6)
            self._eras = [*self._eras, (begins, self._base(up) + shift)]
            self._fresh, self._doubted = False, None
            self._write()

    # -- eras

    def _era(self, up: int) -> int:
        last = len(self._eras) - 1
        while last and up < self._eras[last][0]:
            last -= 1
        return last

    def _base(self, up: int) -> int:
        return self._eras[self._era(up)][1]

    def _adopt(self) -> bool:
        """Adopt the eras in the shared file if they are from this boot and not older than ours."""
        if self._path is None or not self._boot:
            return False
        try:
            kept = json.loads(self._path.read_text())
            eras = [(int(start), int(base)) for start, base in kept["eras"]]
            mine, confirmed = kept["boot"] == self._boot, bool(kept["confirmed"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not mine or len(eras) < len(self._eras):
            return False
        self._eras = eras
        self._fresh = self._fresh and not confirmed
        return True

    def _write(self) -> None:
        if self._path is None or not self._boot:
            return
        hidden = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        with suppress(OSError):  # a full disk: this worker still has them in memory
            self._path.parent.mkdir(parents=True, exist_ok=True)
            hidden.write_text(
                json.dumps({"boot": self._boot, "confirmed": not self._fresh, "eras": self._eras})
            )
            hidden.replace(self._path)
