"""Conditions: what is currently wrong with a worker that still answers.

/readyz, `florin doctor`, the metric `florin_condition` and the alerts all read this one list, so they always
agree. Each component that can fail silently registers a check. Checks run often, so they only report what
the component already knows.
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
    """What is wrong, in one sentence."""
    remedy: str
    """How to fix it, in a sentence or two."""
    serves: bool = True
    """False: requests fail meanwhile, so /readyz returns 503."""


CONDITIONS: Final[dict[str, Meaning]] = {
    "feed_lost": Meaning(
        "problem",
        "The worker cannot read the change feed; it serves requests from its last snapshot.",
        "Check that Redis is up and reachable; the worker reconnects automatically. If Redis answers and "
        "this persists, see the gateway's log.",
    ),
    "registry_regressed": Meaning(
        "problem",
        "Redis has lost the registry or part of it; requests are served from the last snapshot, and the "
        "registry is read-only.",
        "`florin registry show` lists what is missing. `florin registry rewrite` writes it back; `florin "
        "registry accept` continues with what Redis has. Until then, keep the gateways' state directories.",
    ),
    "registry_shrinking": Meaning(
        "warning",
        "Many tenants, keys or adapters were removed within minutes.",
        "`florin audit list` shows who removed them. If it was a mistake, stop it and apply the last export.",
    ),
    "registry_unkept": Meaning(
        "warning",
        "The registry snapshot cannot be saved to disk; a restart while Redis is down would fail.",
        "Free space on the disk of FLORIN_STATE_DIR, or make it writable for Florin's user.",
    ),
    "engine_hung": Meaning(
        "problem",
        "An engine passes health checks but does no work; its requests go to other engines or fail.",
        "Check its log, GPU and storage; restart it if it does not recover. Florin probes it with one token "
        "from time to time and uses it again once it answers.",
    ),
    "engine_lacks_flag": Meaning(
        "warning",
        "An engine refuses requests that need a flag with which it was not started.",
        "To offer what the flag enables, restart the engine with it. The gateway's log names "
        "the engine and the flags. This ends an hour after the last such request.",
    ),
    "clock_off": Meaning(
        "warning",
        "The clock of this host, Redis or the ledger's database differs from Florin's own.",
        "Correct the wrong clock and keep it synchronized (NTP). Meanwhile, requests are served and billed "
        "time stays correct. Once two of the clocks have agreed for five minutes, Florin adopts their time.",
    ),
    "settings_refused": Meaning(
        "problem",
        "The reloaded florin.yaml is invalid; the previous settings remain in effect.",
        "Fix what the gateway's log names and send SIGHUP again; otherwise the next restart fails.",
    ),
    "stopping": Meaning(
        "warning",
        "The gateway is shutting down; it still serves requests but wants no new ones.",
        "None needed: load balancers route requests elsewhere, and the process exits.",
        serves=False,
    ),
    "usage_unrecorded": Meaning(
        "problem",
        "Usage cannot be recorded, so requests are refused.",
        "Free space on the disk of FLORIN_STATE_DIR.",
        serves=False,
    ),
    "ledger_behind": Meaning(
        "warning",
        "Usage records have been waiting for the ledger for more than a minute.",
        "Check that the ledger's database is up, reachable and not locked. No record is lost as long as the "
        "disk of FLORIN_STATE_DIR has space.",
    ),
    "usage_of_newer_version": Meaning(
        "warning",
        "Usage logs on this host were written by a newer version of Florin, before a rollback, and only that "
        "version can ship them.",
        "Keep the directories: the newer version ships them once it is installed again. Until then, reports "
        "and bills lack their records.",
    ),
    "ledgers_differ": Meaning(
        "problem",
        "Another gateway of this installation keeps its usage records in another ledger, so reports and "
        "bills lack records.",
        "Give all gateways that share a Redis the same FLORIN_LEDGER_URL (PostgreSQL if they are on several "
        "hosts) and restart them. What is in the other ledger stays there: report it from a gateway that "
        "uses it. Gateways of separate installations need a FLORIN_REDIS_PREFIX each.",
    ),
    "job_failing": Meaning(
        "warning",
        "A job that one worker does for all gateways fails, such as the scheduled export of costs, ledger "
        "maintenance or the webhook of cost alerts.",
        "Fix what the message names. If it is the export: check FLORIN_EXPORT_TO, that the gateway may write "
        "there, and the prices. It is retried automatically.",
    ),
    "events_late": Meaning(
        "warning",
        "Events wait because their receiver does not take them.",
        "`florin events status` shows the receiver's answer. Fix the receiver, or correct "
        "FLORIN_AUDIT_EVENTS_TO or FLORIN_USAGE_EVENTS_TO. Nothing is lost: delivery then resumes by itself "
        "where it stopped.",
    ),
    "disk_low": Meaning(
        "warning",
        "A disk is nearly full.",
        "Free space, or use a larger disk. When the disk of FLORIN_STATE_DIR is full, requests are refused "
        "because their usage cannot be recorded.",
    ),
    "disk_slow": Meaning(
        "warning",
        "Writes to the disk of FLORIN_STATE_DIR take more than a second and delay requests.",
        "Check what else writes there, and the disk's health. A write that takes more than 5 s counts as "
        "failed, and requests are refused until the disk responds.",
    ),
    "batches_stuck": Meaning(
        "warning",
        "Batches have made no progress for half an hour.",
        "`florin batch list` shows them. They wait for idle engines of their models, and for their tenants' "
        "limits and budgets; and they need a worker with FLORIN_BATCH_CONCURRENCY above 0.",
    ),
    "loop_blocked": Meaning(
        "warning",
        "A worker's event loop stood still for more than a second, and every request of the worker with it.",
        "The gateway's log names the function and shows its stack: report it as a defect. Until it is fixed, "
        "more workers (FLORIN_WORKERS) limit how many requests wait.",
    ),
    "canary_stopped": Meaning(
        "warning",
        "A guard has held or rolled back a canary.",
        "`florin adapter show` compares it with the live version. If it is held, roll it back or raise its "
        "weight with --force; promote the live version again to dismiss a rollback.",
    ),
    "engine_trial_stopped": Meaning(
        "warning",
        "A guard has drained an engine on trial.",
        "`florin engine trial NAME` compares it with the rest of its fleet. Put the old version back and "
        "restart it, or remove it; `florin engine uncordon` takes it into service all the same.",
    ),
    "workers_crash": Meaning(
        "problem",
        "Workers of this gateway keep crashing; each is restarted, but its requests are cut off.",
        "See the gateway's log for the exit codes: -9 means killed (often out of memory), -7 unreadable disk "
        "or memory, 1 a failed start, which the log explains.",
    ),
}
"""All conditions. `python -m tests.tools.docs` writes docs/reference/conditions.md from them."""


@dataclass(frozen=True, slots=True)
class Condition:
    code: str
    """A key of CONDITIONS."""
    subject: str = ""
    """What it concerns, for example an engine; empty: this worker, or the installation."""
    message: str = ""
    """Details, in one sentence; empty: the summary says it all."""

    @property
    def meaning(self) -> Meaning:
        return CONDITIONS[self.code]


Check = Callable[[], Iterable[Condition]]


class Conditions:
    """The registered checks of one worker. Use it from the worker's event loop only."""

    def __init__(self) -> None:
        self._checks: list[Check] = []

    def __repr__(self) -> str:
        return f"<Conditions {[condition.code for condition in self.now()]}>"

    def add(self, check: Check) -> None:
        """Register a check, which must not block."""
        self._checks.append(check)

    def when(self, holds: Callable[[], bool], code: str) -> None:
        """Report the condition `code` while `holds()` is true."""
        condition = Condition(code)
        assert condition.meaning
        self.add(lambda: [condition] if holds() else [])

    def now(self) -> list[Condition]:
        """Current conditions, the worst first. A check that fails is logged and skipped."""
        current: list[Condition] = []
        for check in self._checks:
            try:
                current += check()
            except Exception:  # a defect in one check must not hide the others
                log.exception("Condition check failed")
        return sorted(current, key=lambda c: (c.meaning.serves, c.meaning.severity != "problem", c.code))
