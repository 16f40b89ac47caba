"""What can go wrong with adapters: one tree. `gateway.errors` maps it to HTTP in one place.

AdaptersError
├── InvalidNameError        a malformed name
├── NotFoundError           no such adapter, version, engine, base model
├── ConflictError           changed concurrently, or already exists
│   └── FencedError         the caller no longer holds the role that this change requires
├── InUseError              cannot be removed while something depends on it
├── CanaryHeldError         the guard holds the canary, so its weight cannot be raised
├── QuotaExceededError      a tenant's quota does not allow it
├── RejectedError           an adapter that failed its checks; carries `findings`
├── StoreUnavailableError   Redis cannot be reached, so no shared decision can be made
│   ├── RegistryRegressedError  Redis answers but has lost data that this worker knows; writes are refused
│   └── RegistryTooNewError     a newer Florin has changed the registry's format; the gateway does not start
├── EngineError             an engine refused, failed or did not respond
│   ├── EngineUnreachableError
│   └── EngineSuspectError  its base model's output has changed; no adapters are loaded there
└── PlacementError          no slot could be obtained
    ├── NoEngineError       no engine in the fleet can hold the version now
    ├── LoadFailedError     an engine refused to load the version; carries the engine's message
    └── QuarantinedError    the version failed verification; carries the serving status's reason
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class AdaptersError(Exception):
    """Root of the tree. The message is a sentence for the caller."""


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


class CanaryHeldError(AdaptersError):
    pass


class QuotaExceededError(AdaptersError):
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
    """How to fix it, in a sentence."""
    severity: Literal["error", "warning"] = "error"
    """Only errors reject an adapter."""


class RejectedError(AdaptersError):
    def __init__(self, adapter: str, findings: tuple[Finding, ...]) -> None:
        self.adapter = adapter
        self.findings = findings
        first = findings[0]
        others = sum(finding.severity == "error" for finding in findings) - 1
        more = f" (and {others} more)" if others > 0 else ""
        super().__init__(
            f"{adapter} was refused: {first.message} Found {first.found}; expected {first.expected}.{more}"
        )

    def __reduce__(self) -> tuple[type[RejectedError], tuple[str, tuple[Finding, ...]]]:
        return type(self), (self.adapter, self.findings)


class StoreUnavailableError(AdaptersError):
    pass


class RegistryRegressedError(StoreUnavailableError):
    pass


class RegistryTooNewError(StoreUnavailableError):
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
        """The engine that refused, if a single engine did."""


class QuarantinedError(PlacementError):
    pass
