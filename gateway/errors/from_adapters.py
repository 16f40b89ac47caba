"""The error that a caller gets when `adapters` raises: one code for each of its exceptions."""

from __future__ import annotations

from dataclasses import replace

from adapters import errors as adapters_errors
from adapters.errors import AdaptersError, Finding
from gateway.errors.codes import CODES
from gateway.errors.error import FlorinError

_FROM_ADAPTERS: dict[type[AdaptersError], str] = {
    adapters_errors.InvalidNameError: "invalid_name",
    adapters_errors.NotFoundError: "not_found",
    adapters_errors.ConflictError: "conflict",
    adapters_errors.InUseError: "in_use",
    adapters_errors.CanaryHeldError: "canary_held",
    adapters_errors.RejectedError: "adapter_rejected",
    adapters_errors.QuotaExceededError: "quota_exceeded",
    adapters_errors.StoreUnavailableError: "store_unavailable",
    adapters_errors.RegistryRegressedError: "registry_regressed",
    adapters_errors.EngineError: "engine_rejected",
    adapters_errors.NoEngineError: "no_engine",
    adapters_errors.LoadFailedError: "load_failed",
    adapters_errors.QuarantinedError: "version_quarantined",
    adapters_errors.PlacementError: "placement_timeout",
    adapters_errors.AdaptersError: "internal_error",
}
"""Subclasses that are not listed have the code of their base class."""


def translate(error: AdaptersError) -> FlorinError:
    """An error from `adapters`, in full detail, for operators."""
    code = next(_FROM_ADAPTERS[kind] for kind in type(error).__mro__ if kind in _FROM_ADAPTERS)
    findings = error.findings if isinstance(error, adapters_errors.RejectedError) else ()
    retry = 1 if CODES[code].status == 503 else None
    return FlorinError(code, str(error), findings=findings, retry_after=retry)


def for_tenant(error: AdaptersError) -> FlorinError:
    """An error from `adapters` for tenants, without details about the infrastructure."""
    if isinstance(error, adapters_errors.StoreUnavailableError):
        text = "A backend that this request needs is temporarily unavailable. Try again soon."
        return FlorinError("store_unavailable", text, retry_after=1)
    if isinstance(error, adapters_errors.RejectedError):
        error = adapters_errors.RejectedError(error.adapter, tuple(map(_without_address, error.findings)))
    return translate(error)


def _without_address(finding: Finding) -> Finding:
    """What a name resolves to in the gateway's network is the operator's business."""
    return replace(finding, found="another") if finding.code == "source_not_public" else finding
