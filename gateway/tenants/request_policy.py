"""What each tenant's requests may ask of engines: the settings, and where a tenant's own policy differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.fields.rule import FieldPolicy
from gateway.tenants.terms import DEFAULT_POLICY, RequestPolicy


class RequestPolicies:
    """Mutable: tenants' policies joined with the settings, computed once each. An operator's changes are few,
    so none is forgotten."""

    def __init__(self, settings: FieldPolicy) -> None:
        self._settings = settings
        self._joined: dict[RequestPolicy, FieldPolicy] = {DEFAULT_POLICY: settings}

    def of(self, own: RequestPolicy) -> FieldPolicy:
        if own is DEFAULT_POLICY:  # the common case, without hashing
            return self._settings
        policy = self._joined.get(own)
        if policy is None:
            policy = self._joined[own] = joined(self._settings, own)
        return policy


def joined(settings: FieldPolicy, own: RequestPolicy) -> FieldPolicy:
    changes: dict[str, Any] = {
        "media_hosts": None if own.media_hosts is None else frozenset(own.media_hosts),
        "chat_templates": own.chat_templates,
        "structured_outputs": own.structured_outputs,
        "passed": None if own.pass_fields is None else frozenset(own.pass_fields),
    }
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})
