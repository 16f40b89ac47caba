"""What `apply` would change, or has changed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.fleet.adapters.schemas.adapters import Finding
from gateway.schemas.base import Answer

Kind = Literal[
    "base", "engine", "tenant", "key", "adapter", "price", "rate_card", "rate_card_assignment", "removed"
]
Verb = Literal["create", "change", "remove", "refuse"]
Outcome = Literal["planned", "done", "failed", "skipped"]


class FieldChange(Answer):
    field: str = Field(description="Of nested objects, with dots.", examples=["canary.guard.then"])
    old: Any = Field(description="null: there was none.")
    new: Any = Field(description="null: there is none any more.")


class ActionError(Answer):
    """An error as the API returns it."""

    message: str
    type: str
    param: str | None
    code: str
    findings: tuple[Finding, ...] = Field((), description="Failed checks of an adapter.")


class Action(Answer):
    """A change of one object."""

    action: Verb
    kind: Kind
    id: str
    fields: tuple[FieldChange, ...]
    reason: str = Field(description="Why it is refused; empty: it is not.")
    outcome: Outcome = Field(
        description="`planned`: by a dry run; `skipped`: something that it needs has failed, or it is a "
        "removal and anything has."
    )
    error: ActionError | None = Field(description="null unless it failed or was skipped.")


class PlanCounts(Answer):
    """Objects."""

    create: int
    change: int
    remove: int
    refuse: int
    unchanged: int


class Applied(Answer):
    dry_run: bool
    plan: str = Field(description="Digest of the plan.")
    counts: PlanCounts = Field(description="What the plan consists of.")
    failed: int = Field(description="Actions that failed or were skipped.")
    actions: tuple[Action, ...]
