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
    "registry_regressed": Meaning(
        "problem",
        "Redis has lost the registry, or part of it: requests are served from what was known before, and "
        "nothing is changed.",
        "`florin registry show` says what is missing; `florin registry restore` puts it back, and `florin "
        "registry accept` goes on with what Redis has. Until then, keep the gateways' state directories.",
    ),
    "registry_shrinking": Meaning(
        "warning",
        "A large part of the tenants, keys or adapters has been removed within minutes.",
        "`florin audit list` says by whom. If it was a mistake, stop it, and apply the last export.",
    ),
    "registry_unkept": Meaning(
        "warning",
        "What is known of the registry cannot be kept on this host's disk: a restart while Redis is away "
        "would fail.",
        "Make room on the disk of FLORIN_STATE_DIR, or give Florin's user the right to write there.",
    ),
    "engine_hung": Meaning(
        "problem",
        "An engine says that it is healthy, but does no work; its requests go to other engines, or fail.",
        "Look at its log, its GPU and its storage; if it does not recover, restart it. It is probed with one "
        "token now and then, and used again as soon as it answers.",
    ),
    "clock_off": Meaning(
        "warning",
        "Clocks differ: this host's, Redis's or the ledger database's is not the one by which Florin books.",
        "Set the clock that is wrong, and keep it synchronized (NTP). Requests are served, and no time is "
        "booked that did not pass. If two of the clocks agree for five minutes, Florin follows them.",
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
    "ledger_behind": Meaning(
        "warning",
        "Usage records have waited more than a minute for the ledger.",
        "See that the ledger's database is up, reachable and not locked. Nothing is lost meanwhile, as long "
        "as there is room on the disk of FLORIN_STATE_DIR.",
    ),
    "disk_low": Meaning(
        "warning",
        "A disk is nearly full.",
        "Make room, or give it a larger disk. When that of FLORIN_STATE_DIR is full, requests are refused, "
        "because their usage cannot be recorded.",
    ),
    "disk_slow": Meaning(
        "warning",
        "Writes to the disk of FLORIN_STATE_DIR take more than a second, so requests wait for them.",
        "See what else writes there, and the disk's health. A write that takes more than 5 s counts as a "
        "failure, and requests are refused until the disk answers.",
    ),
    "workers_crash": Meaning(
        "problem",
        "Workers of this gateway keep ending by themselves; each is started again, and what it was answering "
        "is cut off.",
        "See the gateway's log for the exit codes: -9 is a kill (often for memory), -7 a disk or memory that "
        "cannot be read, 1 a failed start, which the log explains.",
    ),
}
"""Every condition that there is. docs/reference/conditions.md lists them."""


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
