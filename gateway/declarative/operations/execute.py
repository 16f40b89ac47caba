"""Carrying out a plan: in its order, adapters several at a time, on past what fails. But where anything has
failed, nothing is removed: perhaps it was to be replaced."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from itertools import groupby

import orjson

from adapters.errors import AdaptersError, StoreUnavailableError
from gateway.declarative.operations.actions import ApplyPlan, PlannedAction, Ref
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.objects import act
from gateway.declarative.operations.resolve import DocumentRefusedError
from gateway.declarative.operations.splits import Report
from gateway.declarative.schemas import Action, Outcome
from gateway.errors import FlorinError, translate
from gateway.fleet.adapters.operations.adapters import disk_failure
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations.authorization import READER
from gateway.operations.progress import AbandonedError
from gateway.operations.state import State

log = logging.getLogger(__name__)

_AT_ONCE = {"engine": 16, "adapter": 4}
"""How many of each kind are under way at a time: engines may be slow to answer, and adapters are fetched."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    action: PlannedAction
    state: Outcome
    error: FlorinError | None = None

    def answer(self) -> Action:
        error = self.error and orjson.loads(self.error.body())["error"]
        return Action.of(self.action, action=self.action.verb, outcome=self.state, error=error)


def planned(plan: ApplyPlan) -> list[ActionOutcome]:
    """What a dry run says."""
    return [_refused(a) if a.verb == "refuse" else ActionOutcome(a, "planned") for a in plan.actions]


async def execute(
    state: State, plan: ApplyPlan, document: Document, *, actor: str, report: Report
) -> list[ActionOutcome]:
    """An outcome for each action, in their order. Raises AbandonedError when `report` does."""
    run = _Run(state, document, actor, report, total=len(plan.actions))
    for (kind, removing), actions in groupby(plan.actions, key=lambda a: (a.kind, a.verb == "remove")):
        await run.all(list(actions), at_once=1 if removing else _AT_ONCE.get(kind, 1))
    by_action = {id(o.action): o for o in run.outcomes}
    return [by_action[id(a)] for a in plan.actions]


class _Run:
    """One execution. Mutable: outcomes so far, refs of what failed, whether Redis is away."""

    def __init__(self, state: State, document: Document, actor: str, report: Report, *, total: int) -> None:
        self._state = state
        self._document = document
        self._actor = actor
        self._report = report
        self._total = total
        self._failed: set[Ref] = set()
        self._away: StoreUnavailableError | None = None
        self.outcomes: list[ActionOutcome] = []

    async def all(self, actions: list[PlannedAction], *, at_once: int) -> None:
        places = asyncio.Semaphore(at_once)

        async def work(action: PlannedAction) -> None:
            async with places:
                await self.one(action)

        tasks = [asyncio.create_task(work(action)) for action in actions]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def one(self, action: PlannedAction) -> None:
        self._report(f"{action.kind} {action.id}", len(self.outcomes), self._total)
        outcome = self._before(action) or await self._tried(action)
        if outcome.state != "done":
            self._failed.add(action.ref)
        self.outcomes.append(outcome)

    def _before(self, action: PlannedAction) -> ActionOutcome | None:
        """What is known without trying."""
        if action.verb == "refuse":
            return _refused(action)
        if self._away is not None:
            return ActionOutcome(action, "skipped", translate(self._away))
        if action.verb == "remove" and self._failed:
            return ActionOutcome(
                action, "skipped", FlorinError("conflict", "Nothing is removed where something failed.")
            )
        needed = sorted(action.needs & self._failed)
        if needed:
            kind, id_ = needed[0]
            return ActionOutcome(
                action, "skipped", FlorinError("conflict", f"It needs {kind} {id_}, which failed.")
            )
        return None

    async def _tried(self, action: PlannedAction) -> ActionOutcome:
        try:
            await act(self._state, action, self._document, actor=self._actor, report=self._report)
        except AbandonedError:
            raise
        except FlorinError as error:
            return ActionOutcome(action, "failed", error)
        except DocumentRefusedError as error:
            return ActionOutcome(action, "failed", FlorinError("conflict", str(error)))
        except AdaptersError as error:
            if isinstance(error, StoreUnavailableError):
                self._away = error
            return ActionOutcome(action, "failed", translate(error))
        except LedgerUnavailableError as error:
            return ActionOutcome(action, "failed", FlorinError("ledger_unavailable", str(error)))
        except OSError as error:
            return ActionOutcome(action, "failed", disk_failure("The version's files", error, READER))
        except Exception:  # a defect with one object: the others go on, and the end names it
            log.exception("applying %s %s failed", action.kind, action.id)
            text = "Internal error in Florin; see the gateway's log."
            return ActionOutcome(action, "failed", FlorinError("internal_error", text))
        return ActionOutcome(action, "done")


def _refused(action: PlannedAction) -> ActionOutcome:
    return ActionOutcome(action, "failed", FlorinError(action.code, action.reason))
