"""Which engines may serve a request at all. The scheduler scores only these."""

from __future__ import annotations

from adapters.model import DEDICATED, release_of
from adapters.placement.scheduling.view import Action, Ask, EngineView

UNHEALTHY = "unhealthy"
"""Reason shown for an engine that is down."""
DRAINING = "draining"
"""Reason shown for one that takes no more requests, or that its host has stopped."""
NOT_UP = frozenset({UNHEALTHY, DRAINING})
"""Reasons of engines in place of which another must start."""
VACATED = "its slot there is being vacated"
NO_ROOM = "had no free slot a moment ago"
FULL = "full: it runs as many requests as it can"
NOT_STARTED_WITH = "was not started with it, and loads nothing later"
SERVES_ONLY = "serves only"
PRIVATE = DEDICATED, SERVES_ONLY
"""Reasons that begin so name the tenant that an engine serves. Other tenants must not see them."""
UNVERIFIED = "has yet to be compared with an engine that loads it"
PASSING = frozenset({UNHEALTHY, VACATED, NO_ROOM, FULL})
"""Reasons that may pass, so that waiting can help."""


def refusal(view: EngineView, ask: Ask, action: Action) -> str:
    """Why the engine cannot serve the request in this way; empty: it can. `view` has been checked."""
    if (ask.requires or DEDICATED in view.labels) and not view.meets(ask.requires):
        return _unmet(view, ask)  # up or not
    if view.blocked:
        return view.blocked
    if view.serves and (reason := _of_merged(view, ask, action)):
        return reason
    full = FULL if view.refuses(ask) else ""
    if not ask.version or action is Action.SERVE:
        return full
    if view.name in ask.no_room_on:
        return NO_ROOM
    return full if action is Action.JOIN else _why_not_loaded(view, ask, action) or full


def _why_not_loaded(view: EngineView, ask: Ask, action: Action) -> str:
    """Why the engine cannot take the version into a slot; empty: it can."""
    if ask.rank > view.max_rank:
        return f"rank {ask.rank} exceeds its maximum of {view.max_rank}"
    if view.only is not None and (ask.document is None or ask.document.id not in view.only):
        return NOT_STARTED_WITH
    if ask.document is not None and release_of(ask.document.min_vllm) > view.release:
        return f"needs vLLM {ask.document.min_vllm} or later"
    if view.closed:
        return view.closed
    if view.slots < 1:
        return "has no slots"
    if view.pinned >= view.slots and not (action is Action.LOAD and ask.version in view.held):  # it has one
        return "every slot is pinned"
    return ""


def _unmet(view: EngineView, ask: Ask) -> str:
    owner = view.labels.get(DEDICATED)
    if owner is not None and ask.requires.get(DEDICATED) != owner:
        return f"{DEDICATED} {owner}"
    required = ((label, value) for label, value in ask.requires.items() if label != DEDICATED)
    return "requires " + next(f"{name}={value}" for name, value in required if view.labels.get(name) != value)


def _of_merged(view: EngineView, ask: Ask, action: Action) -> str:
    """Why an engine into whose weights a version is merged cannot serve the request; empty: it can. Nothing
    is loaded there: once the leader has compared it, it holds the version."""
    if ask.document is None or ask.document.id != view.serves:
        return f"{SERVES_ONLY} {view.serves}"
    return UNVERIFIED if action in {Action.LOAD, Action.ACTIVATE} else ""
