"""Where versions are, and which may not be served."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from adapters.model.engine import Task


def fingerprint_id(model: str, task: Task) -> str:
    """The id of a model's fingerprint, by its name on engines. One that is served for several tasks has
    several, since vectors cannot be compared with texts."""
    return model if task == "generate" else f"{model} {task}"


def fingerprint_ids(model: str) -> list[str]:
    """The ids that a model's fingerprints may have."""
    return [fingerprint_id(model, task) for task in get_args(Task)]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The first answer of a version or base model to the fixed prompts; later answers are compared with it.
    For its id, see `fingerprint_id`."""

    prompt: str
    """Id of the prompts and parameters used. Fingerprints with different ids are not comparable."""
    text: str
    """The greedy continuations."""
    logprobs: tuple[float, ...]
    """Log probabilities of the likeliest first tokens for each prompt, in the order of
    `adapters.placement.fingerprint`; or sketches of its vectors, or scores."""
    engine: str
    gpu_type: str
    taken: int
    """Unix microseconds, UTC."""


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Why a registered version is not served. Its id is the version's `engine_name`.

    If the id is an engine's name, the engine itself is suspect (`engine_suspect`, no `version`): no adapters
    are loaded there until it restarts or its base model answers as before."""

    state: Literal["quarantined", "failed"]
    """quarantined: it failed verification, and only an operator can release it; failed: it cannot be loaded,
    and the reconciler retries periodically."""
    version: str
    """`acme/support@v3`."""
    code: str
    """`answers_like_base`, `unlike_itself`, `load_failed`, `engine_suspect`."""
    reason: str
    """A sentence for the caller: no engine-side names, paths or URLs."""
    engine: str
    since: int
    """Unix microseconds, UTC."""
    attempts: int = 0
    """Failed loads so far."""
    retry: int = 0
    """When the next attempt is due, Unix microseconds, UTC; 0 for never."""
    evidence: dict[str, Any] | None = None
    """The figures that were compared, for the operator."""


class SlotState(StrEnum):
    LOADING = "loading"
    RESIDENT = "resident"
    CACHED = "cached"
    """Registered on the engine, and in its CPU memory as far as known. It holds no GPU slot, and takes no
    requests until a claim activates it."""
    LEAVING = "leaving"
    """Resident, but takes no new requests, so that another version can have the slot."""
    LOST = "lost"
    """The engine process that held it is gone. The slot stays reserved until the reconciler reloads the
    version or another version needs the slot."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One version's assignment to one engine: to one of its slots, or `cached`."""

    engine: str
    version: str
    """The version's `engine_name`."""
    state: SlotState
    owner: str = ""
    """Worker that is loading it, while it is loading."""
    for_ms: int = 0
    """How long `loading` or `leaving` holds, counted from the event; afterwards it may be overridden."""
    verified: str = ""
    """Set by a load's confirmation: the engine process in which the version was sound and the fingerprint
    that it agreed with, in a form that only the verifier reads; empty if it was not verified."""

    @property
    def id(self) -> str:
        return f"{self.engine}/{self.version}"
