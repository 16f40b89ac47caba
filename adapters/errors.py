"""What can go wrong with adapters: one tree. `gateway.errors` maps it to HTTP in one place.

AdaptersError
├── InvalidNameError        a name that is not a name
├── NotFoundError           no such adapter, version, engine, base model
├── ConflictError           somebody else changed it meanwhile, or it exists already
│   └── FencedError         the role under which this was to be changed has passed on
├── InUseError              cannot be removed while something depends on it
├── RejectedError           an adapter that cannot work; carries `findings`
├── StoreUnavailableError   Redis is away: nothing that needs a decision can be decided
│   └── RegistryRegressedError  it answers, but has lost what this worker knows: nothing changes there
├── EngineError             an engine refused, failed or did not answer
│   ├── EngineUnreachableError
│   └── EngineSuspectError  its base model answers unlike itself: nothing is to be loaded there
└── PlacementError          no slot could be had
    ├── NoEngineError       no engine of the fleet can hold it now
    ├── LoadFailedError     an engine refused to load it; carries the engine's words
    └── QuarantinedError    it was loaded, but answered wrongly; carries the serving status's reason
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class AdaptersError(Exception):
    """Root of the tree. The message is a sentence for the person who caused it."""


class InvalidNameError(AdaptersError):
    pass


class NotFoundError(AdaptersError):
    pass


class ConflictError(AdaptersError):
    pass


class FencedError(ConflictError):
    pass


class InUseError(AdaptersError):
    pass


@dataclass(frozen=True, slots=True)
class Finding:
    """One failed check of an adapter."""

    code: str
    """Stable, snake_case: `rank_too_high`."""
    message: str
    """What is wrong, in a sentence."""
    found: str
    expected: str
    remedy: str = ""
    """What to do about it, in a sentence."""
    severity: Literal["error", "warning"] = "error"
    """A warning refuses nothing."""


class RejectedError(AdaptersError):
    def __init__(self, adapter: str, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        first = findings[0]
        others = sum(finding.severity == "error" for finding in findings) - 1
        more = f" (and {others} more)" if others > 0 else ""
        super().__init__(
            f"{adapter} was refused: {first.message} Found {first.found}; expected {first.expected}.{more}"
        )


class StoreUnavailableError(AdaptersError):
    pass


class RegistryRegressedError(StoreUnavailableError):
    pass


class EngineError(AdaptersError):
    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnreachableError(EngineError):
    pass


class EngineSuspectError(EngineError):
    pass


class PlacementError(AdaptersError):
    pass


class NoEngineError(PlacementError):
    pass


class LoadFailedError(PlacementError):
    def __init__(self, message: str, engine: str = "") -> None:
        super().__init__(message)
        self.engine = engine
        """Which refused it, where it was one."""


class QuarantinedError(PlacementError):
    pass
