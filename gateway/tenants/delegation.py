"""How far a tenant's own administrator may go with the keys that it creates and changes. Pure.

What an operator set on the administrator's key bounds them: a scope, limit or budget that is left out is
inherited, and a wider one is refused. Their priority is the operator's to choose.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from gateway.errors import FlorinError
from gateway.tenants.directory import TENANT_ROLES, Key
from gateway.tenants.scopes import covers
from gateway.tenants.terms import Budget, Limits, Priority, Scopes

T = TypeVar("T", Limits, Budget)


def created(by: Key, new: Key) -> Key:
    """The new key, with what it inherits. Raises FlorinError if it may not be created."""
    if new.role not in TENANT_ROLES:
        raise FlorinError(
            "insufficient_role",
            f"A key of role {by.role} creates keys of role {' or '.join(sorted(TENANT_ROLES))} only.",
        )
    if new.priority is not Priority.NORMAL:
        raise _operators("priority")
    return _bounded(by, replace(new, priority=by.priority))


def changed(by: Key, old: Key, new: Key) -> Key:
    """The changed key, with what it inherits. Raises FlorinError if it may not be changed like this."""
    if new.priority is not old.priority:
        raise _operators("priority")
    check_within(by, old, "change")
    return _bounded(by, new)


def check_within(by: Key, key: Key, verb: str) -> None:
    """Whether `key` reaches no further than `by`, which wants to `verb` it. Raises FlorinError."""
    try:
        within = _bounded(by, key) == key
    except FlorinError:
        within = False
    if not within:
        raise FlorinError(
            "insufficient_scope", f"Key {key.id} may do more than this one: ask the operator to {verb} it."
        )


def _bounded(by: Key, key: Key) -> Key:
    return replace(
        key,
        scopes=_scopes(by, key),
        limits=_at_most("limits", by.limits, key.limits),
        budget=_at_most("budget", by.budget, key.budget),
    )


def _scopes(by: Key, key: Key) -> Scopes:
    scopes = key.scopes
    for pattern in scopes.adapters if by.scopes.adapters else ():
        full = pattern if "/" in pattern else f"{by.tenant}/{pattern}"
        if pattern not in by.scopes.adapters and ("*" in pattern or not covers(by, full)):
            raise _wider("scopes.adapters", ", ".join(by.scopes.adapters))
    if by.scopes.endpoints and not set(scopes.endpoints) <= set(by.scopes.endpoints):
        raise _wider("scopes.endpoints", ", ".join(by.scopes.endpoints))
    return replace(
        scopes,
        adapters=scopes.adapters or by.scopes.adapters,
        endpoints=scopes.endpoints or by.scopes.endpoints,
    )


def _at_most(what: str, most: T, requested: T) -> T:
    inherited: dict[str, Any] = {}
    for field in fields(most):
        bound: Any = getattr(most, field.name)
        value: Any = getattr(requested, field.name)
        if bound is None or field.name == "warn_percent":
            continue
        if isinstance(bound, tuple):  # all of both apply
            inherited[field.name] = (*value, *(rule for rule in bound if rule not in value))
        elif isinstance(bound, bool):
            inherited[field.name] = bound or value
        elif value is None:
            inherited[field.name] = bound
        elif value > bound:
            raise _wider(f"{what}.{field.name}", str(bound))
    return replace(requested, **inherited)


def _wider(param: str, bound: str) -> FlorinError:
    return FlorinError(
        "insufficient_scope", f"{param}: this key has {bound}, and gives no other key more.", param=param
    )


def _operators(param: str) -> FlorinError:
    return FlorinError("insufficient_role", f"{param}: only operators set it.", param=param)
