"""One clock for all that is booked: UTC that no step of the host's clock moves.

It is the time since the machine booted, which nobody can set, on top of a base that was taken from the wall
clock once. All workers of a host share the base, through a file, for as long as the machine is up. So a host
whose clock is set by two hours goes on booking seconds that passed, and a restart of the gateway changes
nothing about that.

Every few seconds it is compared with the system's clock, Redis's and the ledger database's. A disagreement is
shown, and followed only once two of these have agreed for a while. Then the base changes, on all workers of
the host at the same instant: a new *era*. What was alive at the change is counted until then in the old era,
and from then on in the new; nothing is counted across.
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
"""Microseconds by which clocks may differ before somebody should look."""
SETTLE_SECONDS: Final = 300.0
"""How long two clocks must agree on another time before it is followed."""
AHEAD: Final = 30_000_000
"""A change of the base is announced so long before: longer than workers take to hear of it."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Era = tuple[int, int]
"""From this uptime on, the base is this; microseconds."""


def uptime() -> int:
    """Microseconds since the machine booted; on Linux, with the time for which it was suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def system_time() -> int:
    """Unix microseconds, by the host's clock."""
    return time.time_ns() // 1000


def boot_id() -> str:
    """What tells this run of the machine from the one before; empty: the system does not say."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def agreed(offsets: Mapping[str, int]) -> int | None:
    """The offset on which two clocks agree, the system's own if it is one of them. None: no two do, or they
    agree with ours."""
    for one, other in combinations([offsets[name] for name in AGAINST if name in offsets], 2):
        if abs(one - other) <= TOLERANCE:
            return one if abs(one) > TOLERANCE else None
    return None


class Clock:
    """Mutable: the eras, and what other clocks said last. `now` may be asked from any thread."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        settle: float = SETTLE_SECONDS,
        uptime: Callable[[], int] = uptime,
        system: Callable[[], int] = system_time,
        boot: str | None = None,
    ) -> None:
        """`path`: the file that the workers of the host share; without one, the clock is this process's own,
        and taken to be right."""
        self._path = path
        self._settle = int(settle * 1e6)
        self._uptime = uptime
        self._system = system
        self._boot = boot_id() if boot is None else boot
        self._doubted: int | None = None
        """Since which uptime two others have agreed on another time."""
        self.offsets: dict[str, int] = {}
        """What others show less what this shows, microseconds."""
        self._eras: list[Era] = [(0, system() - uptime())]
        self._fresh = path is not None
        """No other clock has confirmed it yet."""
        kept = self._adopt()
        self._started = self.now()
        if not kept:
            self._write()

    def __repr__(self) -> str:
        return f"<Clock {self.now()} {self.offsets}>"

    # -- asked by those who book

    def now(self) -> int:
        """Unix microseconds, UTC."""
        up = self._uptime()
        return self._base(up) + up

    def now_ns(self) -> int:
        return self.now() * 1000

    @property
    def era(self) -> int:
        return self._era(self._uptime()) if len(self._eras) > 1 else 0

    @property
    def since(self) -> int:
        """Times before this one are from another era, or unconfirmed: nothing is counted from them on."""
        if self._fresh:
            return self._started
        start, base = self._eras[self.era]
        return start + base if start else 0

    def ended(self, era: int) -> int | None:
        """When an era ended, in monotonic nanoseconds; None: it lasts."""
        if era >= self.era:
            return None
        return time.monotonic_ns() - (self._uptime() - self._eras[era + 1][0]) * 1000

    # -- kept right

    def conditions(self) -> Iterable[Condition]:
        for name, offset in self.offsets.items():
            if abs(offset) > TOLERANCE:
                which = {"system": "This host's clock", "redis": "Redis's clock"}.get(
                    name, "The ledger's clock"
                )
                way = "ahead of" if offset > 0 else "behind"
                yield Condition("clock_off", name, f"{which} is {abs(offset) / 1e6:,.0f} s {way} Florin's.")

    def compare(self, shown: Mapping[str, int]) -> None:
        """`shown`: what other clocks show less what this shows."""
        off = {name for name, offset in shown.items() if abs(offset) > TOLERANCE}
        for name in off - {n for n, offset in self.offsets.items() if abs(offset) > TOLERANCE}:
            log.warning("The clock of %s differs from Florin's by %.1f s.", name, shown[name] / 1e6)
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
            at = up if self._fresh else up + AHEAD
            log.warning("Florin's clock is set by %.1f s: that is what two other clocks show.", shift / 1e6)
            self._eras = [*self._eras, (at, self._base(up) + shift)]
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
        """Take over what the workers of this host have kept since the machine booted, if it is not behind
        what this one knows."""
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
        with suppress(OSError):  # a full disk: this worker knows all the same
            self._path.parent.mkdir(parents=True, exist_ok=True)
            hidden.write_text(
                json.dumps({"boot": self._boot, "confirmed": not self._fresh, "eras": self._eras})
            )
            hidden.replace(self._path)
