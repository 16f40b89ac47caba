"""What is wrong with this worker now, although it answers: one list, which /readyz, `florin doctor`, the
metric `florin_condition` and the alerts all read, so that no two can disagree about whether all is well.

Each part of the worker that can fail quietly adds a look of its own; a look is asked often, so it only
reports what the part already knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Meaning:
    severity: Literal["warning", "problem"]
    summary: str
    """What is wrong, in a sentence."""
    remedy: str
    """What to do about it, in a sentence or two."""
    serves: bool = True
    """False: requests fail while it lasts, so /readyz answers 503."""


CONDITIONS: Final[dict[str, Meaning]] = {
    "feed_lost": Meaning(
        "problem",
        "The change feed is not followed: requests are served from what was last heard.",
        "See that Redis is up and reachable; the worker tries again by itself. If this stays although Redis "
        "answers, see the gateway's log.",
    ),
    "settings_refused": Meaning(
        "problem",
        "florin.yaml was to be read again, but is wrong; the settings of before are in force.",
        "Correct what the gateway's log names, and send SIGHUP again: the next restart would fail.",
    ),
    "stopping": Meaning(
        "warning",
        "The gateway is stopping: it serves what reaches it, and wants no more.",
        "Nothing: balancers send requests elsewhere, and the process ends.",
        serves=False,
    ),
    "usage_unrecorded": Meaning(
        "problem",
        "Usage cannot be recorded, so requests are refused.",
        "Make room on the disk of FLORIN_STATE_DIR.",
        serves=False,
    ),
}
"""Every condition that there is. docs/incidents.md lists them."""


@dataclass(frozen=True, slots=True)
class Condition:
    code: str
    """A key of CONDITIONS."""
    subject: str = ""
    """The engine, … that it is about; empty: this worker, or the installation."""
    message: str = ""
    """What was seen, in a sentence; empty: the summary says it all."""

    @property
    def meaning(self) -> Meaning:
        return CONDITIONS[self.code]


Look = Callable[[], Iterable[Condition]]


class Conditions:
    """Mutable: the looks. All on one event loop."""

    def __init__(self) -> None:
        self._looks: list[Look] = []

    def __repr__(self) -> str:
        return f"<Conditions {[condition.code for condition in self.now()]}>"

    def add(self, look: Look) -> None:
        """`look` neither awaits nor blocks."""
        self._looks.append(look)

    def when(self, holds: Callable[[], bool], code: str) -> None:
        """The condition of that code lasts while `holds()`."""
        condition = Condition(code)
        assert condition.meaning
        self.add(lambda: [condition] if holds() else [])

    def now(self) -> list[Condition]:
        """The worst first. A look that fails hides no other."""
        found: list[Condition] = []
        for look in self._looks:
            try:
                found += look()
            except Exception:
                log.exception("a look at the worker's condition failed")
        return sorted(found, key=lambda c: (c.meaning.serves, c.meaning.severity != "problem", c.code))
