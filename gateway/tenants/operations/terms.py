"""What the terms in an API body or a fleet file change of a tenant or a key."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, replace
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from gateway.costs.periods import LAST_HOUR, PeriodError, instant
from gateway.errors import FlorinError
from gateway.tenants.directory import TENANT_ROLES, Role
from gateway.tenants.schemas.terms import KeyTerms

T = TypeVar("T")

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(0|[1-9][0-9]{0,6})([smhd])", re.ASCII)
_OF_EVERY_ROLE: Final = frozenset({"label"})
_OF_NO_TENANT: Final = frozenset({Role.AUDITOR, Role.ENGINE, Role.METRICS, Role.CONTROLLER})


def check_owner(role: Role, tenant: str, engine: str, **pins: object) -> None:
    """Whose a key of this role is. Raises ValueError, which begins with the field, as the next does."""
    if role in TENANT_ROLES and not tenant:
        raise ValueError(f"tenant: a key of role {role} needs one")
    if tenant and role in _OF_NO_TENANT:
        raise ValueError(f"tenant: a key of role {role} cannot belong to one")
    if role is Role.ENGINE and not engine:
        raise ValueError(f"engine: a key of role {role} needs one")
    for field, value in {"engine": engine, **pins}.items():
        if value and role is not Role.ENGINE:
            raise ValueError(f"{field}: only keys of role engine have this, not role {role}")


def check_terms(role: Role, terms: KeyTerms) -> None:
    """Only requests of tenants are limited, scoped and queued. Raises ValueError."""
    if role in TENANT_ROLES:
        return
    for name, field in KeyTerms.model_fields.items():
        if name not in _OF_EVERY_ROLE and getattr(terms, name) != field.default:
            raise ValueError(f"{name}: only keys of role tenant or tenant-admin have this, not role {role}")


def updated(old: T, terms: BaseModel, *, leave: AbstractSet[str] = frozenset()) -> T:
    """The frozen dataclass with the fields that `terms` sets, but for those in `leave`."""
    changes: dict[str, Any] = {}
    for name in terms.model_fields_set - leave:
        value = getattr(terms, name)
        if value is None:
            changes[name] = _default(old, name)
        elif isinstance(value, BaseModel):
            changes[name] = updated(getattr(old, name), value)
        else:
            changes[name] = value
    return replace(old, **changes)  # type: ignore[type-var]  # T is a dataclass


def _default(instance: Any, name: str) -> Any:
    field = next(f for f in fields(instance) if f.name == name)
    factory: Any = field.default_factory
    return factory() if factory is not MISSING else field.default


def seconds(param: str, text: str) -> int:
    """Parses a duration: `90s`, `30m`, `24h`, `90d`. Raises FlorinError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise FlorinError(
            "invalid_value", f"{param}: {text[:40]!r} is not a time like 30m, 24h or 90d.", param=param
        )
    return int(match[1]) * _UNITS[match[2]]


def expiry(param: str, text: str, now: int) -> int:
    """The Unix microseconds of a duration from `now`, or of an ISO 8601 date or time. Raises FlorinError."""
    try:
        end = now + seconds(param, text) * 1_000_000 if _DURATION.fullmatch(text) else instant(param, text)
    except PeriodError as error:
        raise FlorinError(
            "invalid_value",
            f"{param}: {text[:40]!r} is neither a time like 90d nor a date like 2027-06-30.",
            param=param,
        ) from error
    if not now < end <= LAST_HOUR:
        raise FlorinError("invalid_value", f"{param}: {text[:40]!r} is not in the future.", param=param)
    return end
