"""Decides what happens to a line after an attempt to answer it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MOST_FAILURES: Final = 3
"""Times that a line may fail for no reason that waiting would cure, such as engines that die of it."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds after a refusal that does not say when to retry; one that does is obeyed, up to LONGEST_WAIT."""
LONGEST_WAIT: Final = 300.0
NO_ROOM: Final = frozenset({503, 529})
"""Statuses that mean overload; Anthropic's API has one of its own."""
WAITS: Final = NO_ROOM | {402, 429}
"""Statuses of exceeded limits and budgets; 402 is a budget's in Anthropic's API."""
_TRANSIENT: Final = frozenset({"tenant_suspended", "adapter_suspended", "version_quarantined"})
"""Refusals that an operator lifts, whatever their status."""


class Verdict(Enum):
    ANSWERED = "answered"
    """With success: for the output file, and billed."""
    REFUSED = "refused"
    """For the error file."""
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    pause: float = 0.0
    """Seconds until the next attempt."""
    waits: bool = False
    """It is a matter of time; otherwise the attempt counts as a failure."""
    everyone: bool = False
    """The other lines of the batch wait as long: they would meet with the same."""


def decide(status: int, code: str, retry_after: float | None, *, failures: int, waits: int) -> Decision:
    """`code`: of the error. `retry_after`: seconds, as the answer said. `failures` and `waits`: earlier
    attempts of the line that failed, and for which it had to wait, in a row."""
    if status < 300:
        return Decision(Verdict.ANSWERED)
    if status in WAITS or code in _TRANSIENT:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(waits, 10))
        if retry_after:
            pause = min(
                LONGEST_WAIT, max(FIRST_PAUSE, retry_after) if status == 429 else max(pause, retry_after)
            )
        return Decision(Verdict.AGAIN, pause, waits=True, everyone=status not in NO_ROOM)
    if status >= 500 and failures + 1 < MOST_FAILURES:
        return Decision(Verdict.AGAIN, FIRST_PAUSE * 2**failures)
    return Decision(Verdict.REFUSED)
