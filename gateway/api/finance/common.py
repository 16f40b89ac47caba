"""What the finance routes share: whose rows, of what time, and the types of their parameters."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Query

from gateway.costs.periods import Period, PeriodError, period
from gateway.errors import FlorinError
from gateway.tenants.directory import Key, Role

From = Annotated[str | None, Query(alias="from", description="ISO 8601, UTC; included.")]
To = Annotated[str | None, Query(description="ISO 8601, UTC; not included.")]
Month = Annotated[str | None, Query(description="`2026-11`, instead of from and to.")]
Tenant = Annotated[str | None, Query(description="Only this tenant's rows.")]


def dimensions_of(by: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",")))
    for name in names:
        if name not in known:
            raise FlorinError(
                "invalid_value", f"by: {name[:40]!r} is not one of {', '.join(known)}.", param="by"
            )
    return names


def period_of(start: str | None, to: str | None, month: str | None) -> Period:
    try:
        return period(start=start, end=to, whole_month=month, now=time.time_ns() // 1000)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


def tenants_of(key: Key, asked: str | None) -> tuple[str, ...]:
    """Whose rows are shown: the tenant asked for, and of a tenant's key its own only."""
    own = (key.tenant,) if key.role is Role.TENANT else ()
    return own if asked is None else (*own, asked)


def only_staff(key: Key) -> None:
    """Raises FlorinError for a tenant's key: what follows is about all tenants."""
    if key.role is Role.TENANT:
        raise FlorinError("role_too_small", "This is for keys of role finance or operator.")
