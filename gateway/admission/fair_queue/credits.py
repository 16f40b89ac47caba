"""How many requests may be on an engine at a time, over all workers: its credit. Pure.

An engine serves first come, first served, so whatever waits in its queue is beyond fairness. The credit keeps
that queue short but not empty: what the engine runs at a time, plus HEADROOM, so that its batch never
starves. It is learned from the engine's metrics, because what an engine runs at a time depends on its memory
as well as on `--max-num-seqs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

HEADROOM: Final = 0.02
"""Fraction of the running requests that may wait in the engine's queue; at least one."""
FIRST: Final = 16
"""Credit of an engine about which nothing is known."""
ASSUMED: Final = 64
"""Requests that such an engine is assumed to run at a time, until it is seen to queue fewer."""
LEARNING_SECONDS: Final = 0.1
"""Time between two scrapes of an engine whose credit is used up, while it is growing."""
LEARNED_SECONDS: Final = 0.5


def headroom(running: int) -> int:
    return max(1, int(running * HEADROOM))


@dataclass(slots=True)
class EngineCredit:
    """The credit of one engine. Mutable: `scraped` learns.

    The queue of a working engine is rarely empty for a moment, because new requests wait for the next step.
    So only a queue that is longer than twice the headroom at two scrapes in a row, while no more requests
    run, lowers the credit; one that is no longer than the headroom raises it if the credit was used up.
    """

    seats: int = 0
    """`--max-num-seqs`; 0: unknown."""
    value: int = 0
    plateau: int = 0
    """Requests that it ran while it had a queue; 0: it has had none. Afterwards the credit grows in small
    steps, which double as long as they succeed."""
    _step: int = 1
    _last: tuple[int, int] = (0, 0)
    """Requests running and waiting at the last scrape."""
    _asked: float = -math.inf

    def __post_init__(self) -> None:
        self.value = self.value or min(self.most, self.seats + headroom(self.seats) if self.seats else FIRST)

    @property
    def most(self) -> int:
        return self.seats + headroom(self.seats) if self.seats else 1 << 20

    @property
    def runs(self) -> int:
        """Requests that the engine runs at a time, as far as known."""
        return self.plateau or self.seats or max(ASSUMED, self.value)

    def registered(self, seats: int) -> None:
        """The engine's registration says how many requests it runs at a time; 0: nothing."""
        if seats != self.seats:
            self.seats, self.value, self.plateau, self._step = seats, 0, 0, 1
            self.__post_init__()

    def scraped(self, running: int, waiting: int, in_flight: int) -> None:
        """The engine's metrics. `in_flight`: requests on it, as far as known, when they were asked for."""
        (ran, waited), self._last = self._last, (running, waiting)
        spare = headroom(running)
        if self.plateau:
            self.plateau = max(self.plateau, running)
        if waiting > 2 * spare:
            self._step = 1
            if waited > 2 * headroom(ran) and 0 < running <= ran:
                self.plateau = ran
                self.value = min(self.value, ran + headroom(ran))
        elif waiting > spare:
            self._step = 1
        elif in_flight >= self.value and self.value < self.most:
            more = self._step if self.plateau else self.value
            self.value = min(self.most, self.value + more)
            self._step = min(2 * self._step, self.value)

    def wants_scrape(self, now: float) -> bool:
        """Whether to scrape the engine now, because its credit is used up and may be too small. Notes that it
        is done."""
        settled = self.plateau > 0 or self.value >= self.most
        due = now - self._asked >= (LEARNED_SECONDS if settled else LEARNING_SECONDS)
        if due:
            self._asked = now
        return due
