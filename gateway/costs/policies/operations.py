"""Standing policies: who pays for unused GPU time in open months, for the installation and for tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from difflib import get_close_matches

from gateway.costs.allocation import NONE, AllocationPolicy, checked
from gateway.costs.periods import PeriodError
from gateway.costs.policies.schemas import NewPolicy
from gateway.costs.policies.standing import (
    DEFAULT,
    INSTALLATION,
    StandingPolicyError,
    set_policy,
    unknown_tenants,
)
from gateway.costs.policies.terms import policies_at
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import Key


async def set_standing(state: State, new: NewPolicy, key: Key) -> Json:
    """Set a policy and return what holds from its first month on, with `changed`. Raises FlorinError,
    LedgerUnavailableError."""
    default = new.policy == DEFAULT
    policy = NONE if default else policy_for(new.policy, new.shares, new.shares_total)
    if default and new.shares:
        raise FlorinError("invalid_value", "shares: only for policy fixed.", param="shares")
    await check_known(state, policy.shares)
    await check_known(state, [new.tenant] if new.tenant else (), param="tenant")
    try:
        since, changed = await asyncio.to_thread(
            set_policy,
            state.ledger,
            policy,
            tenant=new.tenant or INSTALLATION,
            default=default,
            valid_from=new.valid_from,
            by=key.id,
            reason=new.reason,
            now=state.clock.now(),
            actor=actor_of(key),
        )
    except (StandingPolicyError, PeriodError) as error:
        param = "valid_from" if error.param in {"from", "month"} else error.param
        raise FlorinError("invalid_value", str(error), param=param) from error
    shown: Json = await state.ledger_process.run(policies_at, since, state.clock.now())
    return {**shown, "changed": changed}


def policy_for(name: str | None, shares: dict[str, int] | None, total: int | None) -> AllocationPolicy:
    """Raises PolicyError."""
    return checked(name or "none", shares or {}, total)


async def check_known(state: State, names: Iterable[str], *, param: str = "shares") -> None:
    """Raise FlorinError unless each name is a tenant, or one that was removed and has usage. A typo would
    bill a tenant that does not exist."""
    tenants = set(names)
    if not tenants:
        return
    known = state.directory.tenants
    new = sorted(tenants - set(known))
    if unknown := await state.ledger_process.run(unknown_tenants, new):
        near = get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean {near[0]}?" if near else " florin tenant list shows them."
        raise FlorinError(
            "invalid_value", f"{param}: no tenant is named {unknown[0][:70]!r}.{hint}", param=param
        )
