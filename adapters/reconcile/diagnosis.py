"""The data behind `florin doctor`: observations, diagnoses and their wording."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adapters.drivers.driver import Listing
from adapters.model import ServingStatus, SlotState, Version
from adapters.reconcile.artifact_gc import CollectionPlan
from adapters.registry.catalog import Catalog

Status = Literal["ok", "warning", "problem"]

SHOWN = 5
"""Names shown in one sentence."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    check: str
    """Stable, snake_case."""
    status: Status
    subject: str
    """The engine, version, … concerned; empty for the installation."""
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """The latest answers of one engine."""

    listing: Listing | None = None
    """None if the engine gave no usable answer; see `error`."""
    error: str = ""
    takes_adapters: bool | None = None
    """None if the engine was not asked."""
    agent: bool = False
    """Whether its agent has sent a heartbeat recently."""


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """Everything that the checks compare, as of one moment. `placed`: engine → version → state."""

    catalog: Catalog
    looks: Mapping[str, EngineObservation]
    placed: Mapping[str, Mapping[str, SlotState]]
    now: int
    """Unix microseconds."""
    missing_files: Mapping[str, str] | None = field(default_factory=dict)
    """Version id → a description of its missing files; None if the store of artifacts did not say."""
    pending_deletions: CollectionPlan = field(default_factory=CollectionPlan)
    starts: bool = False
    """Whether requests wait for an engine to start, so that a fleet without engines is none amiss."""


# -- wording


def names(versions: Collection[str], ids: Mapping[str, Version]) -> str:
    """Version ids such as `acme/support@v2`, or the raw engine name if the version is unknown."""
    shown = sorted(ids[v].id if v in ids else v for v in versions)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more


def them(names: Collection[str]) -> str:
    return "it" if len(names) == 1 else "them"


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def due(serving_status: ServingStatus, now: int) -> str:
    if not serving_status.retry:
        return "only on request"
    seconds = (serving_status.retry - now) // 1_000_000
    return f"in {seconds} s" if seconds > 0 else "due"


def evidence(serving_status: ServingStatus) -> str:
    """The short values of the evidence, in brackets. The complete evidence is stored with the version."""
    shown = [
        f"{key} {_short(value)}" for key, value in (serving_status.evidence or {}).items() if _is_short(value)
    ]
    return f" [{', '.join(shown)}]" if shown else ""


def _is_short(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and 0 < len(value) <= 80)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
